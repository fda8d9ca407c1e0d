"""Plans as jobs of a cluster: ``submit.submit`` starts them, ``node`` is what each node runs."""

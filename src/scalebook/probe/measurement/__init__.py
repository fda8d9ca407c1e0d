"""What runs under torchrun: ``probe_run.run`` measures every part of a probe."""

"""Mixture-of-experts layers: products per expert, permutation and the load of each rank."""

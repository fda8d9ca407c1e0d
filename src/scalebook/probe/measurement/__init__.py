"""What runs under torchrun: ``run.run`` measures every part of a probe."""

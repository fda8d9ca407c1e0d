"""Run the same Megatron training configuration on any vendor and report its throughput honestly."""

__version__ = "0.1.0"

"""All that is derived from a run; entry point of its rates and MFU: ``metrics.measure(run)``."""

"""This machine's GPUs: ``detect.detect`` names them, ``telemetry.sampling`` reads them."""

"""Turn logs from elsewhere into run directories of the same shape as our own."""

"""What this machine reaches without training: ``probing`` starts the measurement and reads it."""

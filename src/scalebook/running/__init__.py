"""Run configurations: start, watch, end, record, recover, and go through a plan."""

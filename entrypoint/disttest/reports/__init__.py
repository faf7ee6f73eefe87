"""Reports: each one reads the result of the run and nothing else, and none knows another."""

"""GPUs: finds them, leases them to one run at a time, checks that they work, and lets ranks share them."""

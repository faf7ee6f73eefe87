"""GPUs that several runs on one host share: leases, the queue for them, and quarantine."""

"""GPUs that several runs on one host share: who holds which, who is next, which must not be used."""

"""The preflight: real work that proves devices. ``prover`` is the process that does it."""

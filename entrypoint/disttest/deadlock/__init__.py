"""Deadlocks: what each rank waits in, in memory that its world reads, and the proof that none can go on."""

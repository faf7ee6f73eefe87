"""Deadlocks: the waits of each rank, in memory that its world reads, and the proof that no rank can go on."""

"""Proof of deadlocks: each rank writes its waits to a shared board, and the world proves that no rank can continue."""

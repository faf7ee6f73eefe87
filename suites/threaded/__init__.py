"""Collectives over threads as ranks: up to 64 ranks in one process, for machines with few cores."""

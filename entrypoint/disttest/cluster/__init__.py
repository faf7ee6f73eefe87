"""Worlds and runs beyond one machine: jobs for a scheduler, agents on its nodes, one verdict for all."""

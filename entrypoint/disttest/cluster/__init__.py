"""Worlds and runs beyond one machine: jobs for an engine that schedules, agents on its nodes, one verdict for all."""

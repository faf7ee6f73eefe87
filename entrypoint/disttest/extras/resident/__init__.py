"""Resident parent: a process that has imported torch, pytest and the plugin, and whose forks are runs."""

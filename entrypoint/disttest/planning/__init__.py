"""Decisions, pure: options, timings, plans, slots. Nothing here sees a process or a pytest object."""

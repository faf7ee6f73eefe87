"""Connects the ranks of large worlds when they first communicate, as a full mesh would take most of their start."""

"""Kinds of process state that tests change: how each is read and restored, and which cannot be restored."""

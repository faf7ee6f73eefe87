"""Slots of a run: the timeline, and on shared machines their cost: minutes used, lost and idle, one slot more or fewer."""

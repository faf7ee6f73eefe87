"""Cost of a run on shared machines: slot-minutes used, lost and idle, and the time with one slot more or fewer."""

"""The last collectives of a rank that hangs, from torch's flight recorder."""

"""Hints below failures whose message does not say what to change: a port in use, a folder of one rank, a second process group."""

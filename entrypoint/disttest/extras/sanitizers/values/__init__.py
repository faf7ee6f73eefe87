"""Sanitizer ``values``: record the numbers that ranks see, and find where they diverge or stop being finite."""

"""``disttest completion`` and ``disttest man``: completion for shells, and the manual page."""

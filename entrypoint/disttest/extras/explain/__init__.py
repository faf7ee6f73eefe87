"""``disttest explain``: the finding, the ranks and the traceback of each failed test of a stored run."""

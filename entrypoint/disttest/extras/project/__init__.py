"""``disttest init``: a first test, settings and a workflow for a project."""

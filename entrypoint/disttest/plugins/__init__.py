"""Built-in plugins, one folder each. They are on by default; ``-p no:disttest.NAME`` removes one from a run."""

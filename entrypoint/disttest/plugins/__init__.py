"""Built-in plugins, a folder each: on by default, removed from a run by ``-p no:disttest.NAME``."""

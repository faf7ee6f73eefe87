"""The processes of a run, one folder each (supervisor, controller, world, rank), and their messages."""

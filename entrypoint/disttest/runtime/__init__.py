"""The supervision tree, a folder for each process: supervisor, controller, world, rank; and what they say to each other."""

"""The supervision tree, a folder for each process: guard, controller, world, rank; and what they say to each other."""

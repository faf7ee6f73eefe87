"""What the processes of a run say to each other."""

"""Messages between the processes of a run."""

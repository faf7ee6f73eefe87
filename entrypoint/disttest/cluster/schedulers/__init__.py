"""The schedulers: this machine's own processes, and Slurm."""

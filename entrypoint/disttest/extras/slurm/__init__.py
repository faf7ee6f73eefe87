"""The scheduler ``slurm``: `disttest run --launcher slurm` submits a job to Slurm, with an agent on each node."""

"""The limits of Slurm, in seconds."""

SLURM_FIRST_POLL_S = 1.0
SLURM_LONGEST_POLL_S = 30.0
"""Slurm's controller has other clients; a job that has waited long may wait a little longer."""
SLURM_KILL_S = 20.0
"""From the cancellation: how long srun may take when Slurm was told to end the agents."""
SLURM_ANSWER_S = 10.0
"""How long a question to the controller may take; it is one of many that keep it busy."""
SLURM_FINAL_S = 3.0
"""How long the controller may take to notice that a job is over."""

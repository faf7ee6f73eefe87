"""Time limits of Slurm, in seconds."""

SLURM_FIRST_POLL_S = 1.0
SLURM_LONGEST_POLL_S = 30.0
"""Longest interval of polls: the controller has other clients, and a long queue time hides a longer one."""
SLURM_RUNNING_POLL_S = 10.0
"""Interval of polls of a job that runs, shorter than the silence that ends it: it may have been suspended."""
SLURM_KILL_S = 20.0
"""Time after a cancellation for which srun may run once Slurm was asked to end the agents."""
SLURM_ANSWER_S = 10.0
"""Time limit of a query; the controller may be busy with many."""
SLURM_FINAL_S = 3.0
"""Time for which the controller may take to notice the end of a job."""

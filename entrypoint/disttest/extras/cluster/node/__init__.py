"""Node side of a job: the agent, and its part of the work."""

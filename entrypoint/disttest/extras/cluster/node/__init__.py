"""What runs on a node of a job: the agent, and its share of the work."""

"""What client, nodes and schedulers agree on: jobs, messages, and what a scheduler has to offer."""

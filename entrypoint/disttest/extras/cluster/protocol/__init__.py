"""Protocol of client, nodes and schedulers: jobs, messages, capacities."""

"""What finds more in a test than its verdict: a tool in each rank, and a judge of what the tools have seen."""

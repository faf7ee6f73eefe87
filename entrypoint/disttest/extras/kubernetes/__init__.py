"""The scheduler ``kubernetes``: `disttest run --launcher kubernetes` submits a job to Kubernetes, with an agent on each node."""

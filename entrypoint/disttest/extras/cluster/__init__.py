"""Runs on the nodes of a cluster: ``disttest run --launcher``, ``disttest cluster-clean``, and the agent of each node.

Schedulers other than ``local`` are separate plugins that build on this one.
"""

NAME = "cluster"

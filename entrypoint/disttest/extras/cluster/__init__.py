"""Runs on the nodes of a cluster: ``disttest run --launcher``, ``disttest cluster-clean``, and the agent of each node.

Schedulers but ``local`` are plugins of their own, which use this one.
"""

"""Divided runs: ``disttest plan``, ``disttest run --plan`` and ``disttest merge``.

A shard may ask a scheduler for nodes, so this plugin imports the cluster plugin.
"""

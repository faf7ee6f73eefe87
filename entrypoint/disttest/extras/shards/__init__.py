"""Runs that are divided: ``disttest plan``, ``disttest run --plan``, and ``disttest merge``.

A shard may ask for the nodes of a scheduler, so this plugin uses that of clusters.
"""

"""Kinds of process state that tests change: how each is read and restored, and which cannot be restored.

One module for each area, with a tuple ``FACETS``; :mod:`disttest.runtime.rank.facets.facet_table` lists the modules.
"""

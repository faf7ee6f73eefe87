"""What of a process tests change, by kind: how it is read, how it is put back, and where that cannot be done.

One module for each area, with a tuple ``FACETS``; :mod:`disttest.runtime.rank.facets.facet_table` lists the modules.
"""

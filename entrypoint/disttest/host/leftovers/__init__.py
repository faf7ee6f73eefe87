"""Leftovers of tests on the machine: shared memory, processes, memory of GPUs. They are found, named and removed.

``shared_memory`` lists files. ``segments`` finds the makers of files and removes those that a world's processes made,
``sweep`` those of killed worlds. Only files of provable origin are removed.
"""

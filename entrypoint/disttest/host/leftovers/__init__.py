"""Leftovers of tests on the machine: shared memory, processes, memory of GPUs. They are found, named and removed.

``shared_memory`` lists files; ``makers`` finds the process that made a file. ``segments`` removes files that a
world's processes made, ``sweep`` those of killed worlds. ``strays`` and ``held_gpus`` name the rest. Only files of
provable origin are removed.
"""

"""What a test leaves on the machine: shared memory, processes, memory of GPUs. Found, named and cleaned.

``shared_memory`` looks; ``makers`` shows who makes what; ``segments`` removes what a world's processes have made, ``sweep``
what killed worlds have. ``strays`` and ``held_gpus`` name what is still there. Only what can be shown to be ours is removed.
"""

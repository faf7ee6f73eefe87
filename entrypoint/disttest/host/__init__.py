"""The machine: its processes and its devices. Each has exactly one module that accesses it."""

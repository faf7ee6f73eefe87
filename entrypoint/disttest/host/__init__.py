"""The machine: its processes and its devices. One module is the only door to each."""

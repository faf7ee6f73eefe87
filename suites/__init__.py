"""The bundled suites: what a user runs to trust a machine, an image or a new torch.

Each folder is a suite; its docstring says what it covers. ``disttest SUITE`` runs one.
"""

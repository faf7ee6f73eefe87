"""The bundled suites, for users who want to trust a machine, an image or a new torch.

Each folder is a suite; its docstring lists its subjects. ``disttest SUITE`` runs one.
"""

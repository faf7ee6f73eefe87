"""Debugs ranks: at the terminal (``--debug-rank``, ``--pdb``), or from VS Code (``--debugpy``)."""

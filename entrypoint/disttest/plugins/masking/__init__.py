"""Masking (``--mask``, ``::add-mask::``): secrets appear in no log, report, message or terminal output."""

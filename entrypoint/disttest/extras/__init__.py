"""Extras, a folder each: built-in plugins whose parts are imported only when a run uses them."""

"""Sanitizer ``order``: find calls of a passed test that would hang or go wrong elsewhere."""

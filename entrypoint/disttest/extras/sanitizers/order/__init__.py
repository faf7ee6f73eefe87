"""The sanitizer of order: a test that passed, whose ranks call things that would hang or go wrong elsewhere."""

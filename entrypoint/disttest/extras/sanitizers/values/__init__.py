"""The sanitizer of values: which numbers ranks have seen, and where they part or stop being finite."""

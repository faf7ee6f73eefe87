"""Sanitizer ``race``: find tensors of a passed test that are accessed while a call that uses them is pending."""

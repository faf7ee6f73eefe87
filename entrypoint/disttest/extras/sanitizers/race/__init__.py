"""The sanitizer of races: a tensor is touched while a call that uses it is pending, though the test passed."""

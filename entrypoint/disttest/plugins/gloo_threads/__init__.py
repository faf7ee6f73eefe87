"""Gloo's threads that carry messages give way to the threads that compute."""

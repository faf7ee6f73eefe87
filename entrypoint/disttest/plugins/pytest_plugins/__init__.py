"""Makes other plugins of pytest fit runs with ranks: each acts once for a test, in the controller, or not at all.

These are pytest-xdist, pytest-rerunfailures, pytest-timeout, pytest-randomly, pytest-benchmark, pytest-forked and those that
write reports. Plugins that need more than a few lines have a folder of their own.
"""

"""Collectives, point-to-point, groups and stores: every call moves the right bytes to the right ranks.

Broadcast, reductions, gathers, scatters, all-to-all, objects, barriers, sub-groups, stores, time limits, asynchronous
handles, futures, profiler events and functional collectives; the same tests for every backend that has the feature.
"""

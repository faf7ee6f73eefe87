"""The supervision tree: the controller schedules worlds, a world supervises its ranks, a rank runs tests.

Each level speaks only with its own children, in the messages of :mod:`disttest.running.protocol`.
"""

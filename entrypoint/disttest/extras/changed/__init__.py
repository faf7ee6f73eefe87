"""`disttest run --changed`: run only the tests that a change can affect, and report the others.

``recorder`` notes which functions and files of the project each test uses; ``sources`` digests them; ``record`` keeps both.
``changes`` asks git; ``choice`` selects. ``session`` connects them in the pytest process.
"""

"""What becomes of a test when one of its ranks is killed, stopped, raises or comes late in one of its calls.

``plan`` makes faults of the calls of an unharmed run, ``tool`` strikes in the rank and notes what the others see, ``judge``
holds what they did against the test's contract.
"""

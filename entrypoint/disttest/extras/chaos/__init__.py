"""`disttest chaos`: harm one rank in one of its calls, and hold the reactions of the others against the test's contract.

``command`` and ``command_run`` run the tests unharmed, plan the faults (``fault_plan``, ``needs``) and run them; ``harms`` makes
a test of each fault; ``in_rank`` strikes and observes; ``in_world`` judges by the contract; ``tables`` shows the outcomes.
Uses the observing layer, ``disttest.observe``.
"""

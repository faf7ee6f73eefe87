"""`disttest chaos`: inject a fault into one call of a rank, and check the others' reactions against its contract.

``command`` and ``command_run`` run the tests without faults (the baseline), plan the faults (``fault_plan``)
and run them. ``fault_items`` makes a test of each fault, ``in_rank`` injects it and observes the rank, ``in_world`` judges by
the contract, and ``tables`` shows the outcomes. The package builds on the observing layer, ``disttest.observe``.
"""

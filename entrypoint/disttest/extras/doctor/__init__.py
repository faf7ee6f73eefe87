"""``disttest doctor``: list the hardware of a machine, prove that it works, and advise where it does not.

It imports the plugins `gpus`, whose checks and preflight it runs, and `leftovers`, which finds unused shared memory.
"""

"""``disttest doctor``: list the hardware of a machine, prove that it works, and advise where it does not.

It imports the plugin `gpus`, whose checks and preflight it runs.
"""

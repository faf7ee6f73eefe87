"""``disttest launch``: start the image on this host through the Docker SDK, and supervise it to the end.

options → find the engine → remove leftovers → choose GPUs → LaunchSpec → container → supervise → hand files back

The package imports nothing of ``runtime/`` and needs no torch, so that a runner's host can install it in a small
environment. It imports the plugin `gpus`, which finds the GPUs of the host.
"""

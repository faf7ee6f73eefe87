"""``disttest launch``: starts the image on this host through the Docker SDK, and stays with it to the end.

options → find the engine → reap what died → choose GPUs → LaunchSpec → container → supervise → hand files
back

It imports nothing of ``runtime/`` and needs no torch, so that a runner's host can have it in a small
environment.
"""

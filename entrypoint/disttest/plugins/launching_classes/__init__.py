"""Supervision of test classes that start their own ranks (``--host``): torch's own, and those like DeepSpeed's.

The world forks one main process for each class. It runs the whole pytest protocol of the tests. The ranks that it
starts are forks of it, which it supervises as a world supervises its ranks. They wait
for work on GPUs with the plugin `gpus`.
"""

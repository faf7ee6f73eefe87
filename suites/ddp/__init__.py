"""DistributedDataParallel: trains as one process on the whole batch would, in every mode it offers, and says so when it cannot.

Gradients and buffers, accumulation, unused parameters, static graphs, communication hooks, model averaging, uneven
inputs, mixed precision, ignored parameters, logging and the errors that tell a user what to change.
"""

"""Distributed autograd: gradients that follow remote calls from rank to rank, and the optimiser on top.

- ``test_contexts``: contexts and their records, and that none is left afterwards, on every rank.
- ``test_graphs``: which functions a call records on each rank that it touches.
- ``test_backward``: gradients equal to those of one process, for every kind of call, dense and sparse.
- ``test_accumulation``: repeated, nested and concurrent backward; hooks; when buffers are copied.
- ``test_references``: gradients of values behind references; parameter servers; embeddings.
- ``test_errors``: wrong arguments, errors inside backward, ranks that go away during it.
- ``test_faults``: contexts are cleaned although messages get lost.
- ``test_optimizer``: the distributed optimiser against the local one.
- ``test_gpu``: the same over GPUs and device maps.
"""

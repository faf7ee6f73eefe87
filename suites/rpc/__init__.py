"""Remote procedure calls: what ``torch.distributed.rpc`` promises its users, over real TensorPipe agents.

- ``test_calls``: sync, async and remote calls of Python functions, builtin operators and TorchScript; arguments,
  executing rank, number of executions; futures, nested and asynchronous execution.
- ``test_rrefs``: remote references: creating, forking, reading and deleting them, counted on their owner.
- ``test_errors``: exceptions and time limits across nodes, and that an agent survives both.
- ``test_profiling``: the events of the profiler.
- ``test_lifecycle``: rendezvous, start, graceful and abrupt end, a node that goes away, growing groups.
- ``test_faults``: an agent that loses and delays messages on purpose.
- ``test_gpu``: tensors on GPUs by device maps (needs two).
"""

"""Sharded training: FSDP2 (``fully_shard``), FSDP1, tensor parallelism and the DTensors below them.

Every test trains a small model and compares it with the same training in one process, on the whole batch.

- ``test_fully_shard``: FSDP2: several steps of training, reshard policies, accumulation, clipping, ignored
  parameters, precision, CPU offload, meta-device initialisation, hybrid and 2-D meshes.
- ``test_fsdp1``: ``FullyShardedDataParallel``: strategies, wrapping, precision, offload, ``no_sync``.
- ``test_state``: full and sharded state dicts, checkpoints read at another world size.
- ``test_dtensor``: placements, redistribution, sharded operators, tensor parallel layers.
"""

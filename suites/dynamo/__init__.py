"""Compiled distributed training: torch.compile with DDP, FSDP and collectives, against eager mode.

- ``test_splits``: where DDPOptimizer cuts the graph: how many graphs, at which borders, which parameters are ignored.
- ``test_ddp``: compiled DDP against eager: outputs, losses, gradients; static graph, checkpointing.
- ``test_fsdp``: compiled FSDP: outputs, guards, graph inputs, duplicated tensors, attributes, checkpointing.
- ``test_collectives``: collectives inside compiled code; ranks that compile together or apart.
- ``test_inductor``: the same through Inductor, which needs a compiler; slow.

``aot_eager`` is the compiler of all but the last. A small encoder replaces a large language model; where
``transformers`` is installed, one of its models is built from its configuration as well.
"""

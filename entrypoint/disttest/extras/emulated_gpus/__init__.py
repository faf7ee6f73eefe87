"""Emulated GPUs (``--device emulated-cuda:N``): torch's own CUDA build runs on machines without a GPU.

Libraries replace CUDA's. Device memory is host memory, a stream is a queue with a thread, an operator runs the CPU's
kernel on the same bytes, and NCCL's collectives copy between processes. torch's allocator, streams, ProcessGroupNCCL with
its watchdog and flight recorder, DDP and FSDP are the real ones. ``docs/devices.md`` says what a pass on emulated GPUs
shows and what it does not.
"""

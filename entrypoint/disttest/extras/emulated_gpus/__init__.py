"""Emulated GPUs (``--device emulated-cuda:N``): torch's own CUDA build runs on machines without a GPU.

Libraries replace CUDA's. Device memory is host memory, a stream is a queue with a thread, an operator runs the CPU's
kernel on the same bytes, and NCCL's collectives copy between processes. torch's allocator, streams, ProcessGroupNCCL
with its watchdog and flight recorder, DDP and FSDP are the real ones, since faults between disttest and GPUs arise
there. A function that is not emulated fails with its name: a call without effect would let tests pass that fail on a
GPU. ``docs/devices.md`` describes the limits of a pass on emulated GPUs.
"""

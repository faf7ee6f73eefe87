"""Emulated GPUs: libraries in the place of CUDA's, on which torch's own CUDA build runs without a GPU.

Device memory is host memory, a stream is a queue with a thread, an operator runs the CPU's kernel on the same
bytes, and NCCL's collectives copy between processes. torch's allocator, streams, ProcessGroupNCCL with its
watchdog and flight recorder, DDP and FSDP are the real ones. ``docs/devices.md`` says what that shows and what not.
"""

from disttest.emulated_device.build import build_libraries, default_cache
from disttest.emulated_device.emulated_environment import emulated_environment

__all__ = ["build_libraries", "default_cache", "emulated_environment"]

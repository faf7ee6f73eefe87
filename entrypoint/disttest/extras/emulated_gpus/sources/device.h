// What libcudart.so.13 offers to the other libraries of the emulated device, beside CUDA's own functions.
#pragma once
#include <cuda_runtime_api.h>

#include "emulated.h"

namespace emulated {
// Where bytes of a device lie, so that another process can read them: in this file of /proc/PID/fd, at this offset.
struct Place {
  int fd;
  size_t offset;
};

// The allocation that an address lies in.
struct Extent {
  void* base;
  size_t bytes;
  int device;  // of this process; negative: pinned memory of the host
  unsigned long long id;
};
}  // namespace emulated

// Put a function into a stream's queue.
EMULATED_API void emulated_enqueue(cudaStream_t stream, void (*function)(void*), void* argument);
// The device's index on the machine; -1: this process sees no such device.
EMULATED_API int emulated_physical(int device);
// Whether this process has initialised CUDA, and whether it has a context on the device.
EMULATED_API int emulated_is_initialised();
EMULATED_API int emulated_is_touched(int device);
// Where the bytes lie that begin here; false: this is no memory of a device, nor pinned.
EMULATED_API bool emulated_place(const void* pointer, size_t bytes, emulated::Place* place);
// The allocation of an address; false: this is no memory of a device, nor pinned.
EMULATED_API bool emulated_extent(const void* pointer, emulated::Extent* extent);
// Count a launch on the current device; what it returns is the fault that was asked for, if its time has come.
EMULATED_API cudaError_t emulated_launch();

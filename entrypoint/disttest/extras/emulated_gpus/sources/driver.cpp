// Stand-in for libcuda.so.1: the few functions of the driver that torch calls itself. What it asks for and is not here
// it gets from cudaGetDriverEntryPointByVersion as a function that returns "not supported".
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "device.h"

using namespace emulated;

namespace {
constexpr int NOT_INITIALIZED = 3, NOT_SUPPORTED = 801, INVALID_DEVICE = 101, INVALID_VALUE = 1;
// There is one context for each device, and only torch's handles to it matter.
void* const CONTEXT = reinterpret_cast<void*>(0x1000);
}  // namespace

// ---- the process

EMULATED_API void emulated_start_thread() {
  static std::atomic<pid_t> started_in{0};
  if (started_in.exchange(getpid()) == getpid()) return;
  std::thread([] {
    pthread_setname_np(pthread_self(), "cuda00002000009");
    for (;;) pause();
  }).detach();
}

// ---- devices

EMULATED_API int cuInit(unsigned) {
  int count;
  return cudaGetDeviceCount(&count);
}
EMULATED_API int cuDriverGetVersion(int* version) { return cudaDriverGetVersion(version); }
EMULATED_API int cuDeviceGetCount(int* count) {
  return emulated_is_initialised() ? cudaGetDeviceCount(count) : NOT_INITIALIZED;
}
EMULATED_API int cuDeviceGet(int* device, int index) {
  *device = index;
  return emulated_physical(index) < 0 ? INVALID_DEVICE : 0;
}
EMULATED_API int cuDeviceGetAttribute(int* value, int, int) {
  *value = 0;  // no multicast, no fabric, no virtual memory: torch then does without
  return 0;
}
EMULATED_API int cuDeviceGetUuid(void* uuid, int device) {
  cudaDeviceProp properties;
  int error = cudaGetDeviceProperties(&properties, device);
  if (!error) memcpy(uuid, &properties.uuid, sizeof properties.uuid);
  return error;
}

// ---- contexts

EMULATED_API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = emulated_is_touched(device);
  return 0;
}
EMULATED_API int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = CONTEXT;
  return 0;
}
EMULATED_API int cuCtxGetCurrent(void** context) {
  *context = CONTEXT;
  return 0;
}
EMULATED_API int cuCtxSetCurrent(void*) { return 0; }

// ---- addresses: what TensorPipe asks of a tensor that it is to send

EMULATED_API int cuPointerGetAttribute(void* value, int attribute, unsigned long long pointer) {
  constexpr int OF_CONTEXT = 1, MEMORY_TYPE = 2, BUFFER_ID = 7, DEVICE_ORDINAL = 9;
  Extent extent;
  if (!emulated_extent(reinterpret_cast<const void*>(pointer), &extent)) return INVALID_VALUE;
  switch (attribute) {
    case OF_CONTEXT: *static_cast<void**>(value) = CONTEXT; return 0;
    case MEMORY_TYPE: *static_cast<unsigned*>(value) = extent.device < 0 ? 1 : 2; return 0;  // of the host, of a device
    case BUFFER_ID: *static_cast<unsigned long long*>(value) = extent.id; return 0;
    case DEVICE_ORDINAL: *static_cast<int*>(value) = std::max(extent.device, 0); return 0;
  }
  fprintf(stderr, "emulated device: attribute %d of cuPointerGetAttribute is not supported\n", attribute);
  return NOT_SUPPORTED;
}
EMULATED_API int cuMemGetAddressRange_v2(unsigned long long* base, size_t* bytes, unsigned long long pointer) {
  Extent extent;
  if (!emulated_extent(reinterpret_cast<const void*>(pointer), &extent)) return INVALID_VALUE;
  if (base) *base = reinterpret_cast<unsigned long long>(extent.base);
  if (bytes) *bytes = extent.bytes;
  return 0;
}

// ---- errors

EMULATED_API int cuGetErrorString(int error, const char** text) {
  *text = cudaGetErrorString(cudaError_t(error));
  return 0;
}
EMULATED_API int cuGetErrorName(int error, const char** name) {
  *name = cudaGetErrorName(cudaError_t(error));
  return 0;
}

// ---- kernels compiled at run time: refused

#define REFUSE(name)                                                             \
  EMULATED_API int name() {                                                      \
    fprintf(stderr, "emulated device: " #name " is not supported\n");            \
    return NOT_SUPPORTED;                                                        \
  }

REFUSE(cuFuncGetAttribute)
REFUSE(cuFuncSetAttribute)
REFUSE(cuFuncSetCacheConfig)
REFUSE(cuLaunchCooperativeKernel)
REFUSE(cuLaunchKernel)
REFUSE(cuLinkAddData_v2)
REFUSE(cuLinkComplete)
REFUSE(cuLinkCreate_v2)
REFUSE(cuModuleGetFunction)
REFUSE(cuModuleLoad)
REFUSE(cuModuleLoadData)
REFUSE(cuModuleLoadDataEx)
REFUSE(cuModuleUnload)
REFUSE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSE(cuTensorMapEncodeTiled)

// Stand-in for libcudart.so.13: devices, errors, kernels. Memory and streams have files of their own.
#include "cudart.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <unordered_map>

#include "faults.h"
#include "registry.h"

namespace emulated {
namespace {

// Of the process; never destroyed, since the streams' threads outlive main.
struct Process {
  std::mutex mutex;
  std::atomic<pid_t> initialised_in{0};
  std::vector<int> visible;  // indices on the machine
  std::atomic<int> spoiled{0};  // the error of a context that is beyond help
  std::atomic<long> launched{0};
  std::unordered_map<const void*, const char*> kernels;
};
Process& process() {
  static Process* const one = new Process;
  return *one;
}

thread_local int t_device = 0;
thread_local cudaError_t t_last = cudaSuccess;

int find_visible(const std::string& word) {
  if (word.rfind("GPU-", 0) == 0) {  // a beginning is enough
    for (int device = 0; device < device_count(); device++)
      if (uuid_text(device).rfind(word, 0) == 0) return device;
    return -1;
  }
  char* end;
  long index = strtol(word.c_str(), &end, 10);
  return end != word.c_str() && index >= 0 && index < device_count() ? int(index) : -1;
}

// CUDA_VISIBLE_DEVICES by index or UUID: what stands behind the first unknown one does not count, and one that stands
// there twice hides all.
std::vector<int> read_visible() {
  std::vector<int> visible;
  const char* given = getenv("CUDA_VISIBLE_DEVICES");
  if (!given) {
    for (int device = 0; device < device_count(); device++) visible.push_back(device);
    return visible;
  }
  std::string text = given;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    int device = find_visible(text.substr(begin, end - begin));
    begin = end + 1;
    if (device < 0) break;
    if (std::count(visible.begin(), visible.end(), device)) return {};
    visible.push_back(device);
  }
  return visible;
}

// The first call of a process, like cuInit.
cudaError_t initialise() {
  Process& p = process();
  pid_t before = p.initialised_in;
  if (before == getpid()) return p.visible.empty() ? cudaErrorNoDevice : cudaSuccess;
  if (before) return cudaErrorInitializationError;  // forked from a process that had initialised CUDA
  std::lock_guard<std::mutex> lock(p.mutex);
  if (!p.initialised_in) {
    p.visible = read_visible();
    p.initialised_in = getpid();
    start_thread_of_driver();
  }
  return p.visible.empty() ? cudaErrorNoDevice : cudaSuccess;
}

bool is_visible(int device) { return device >= 0 && device < int(process().visible.size()); }

void touch(int device) { own_entry().touched[process().visible[device]] = true; }

cudaError_t fault_of_device() {
  if (faults().empty()) return cudaSuccess;
  int physical = process().visible[t_device];
  if (due_fault("vanish", "device", physical, launches())) {
    if (registry()) registry()->lost[physical] = true;
    return cudaErrorUnknown;
  }
  if (const Fault* fault = due_fault("sticky", "device", physical, launches()))
    process().spoiled = fault->number("error", cudaErrorIllegalAddress);
  return cudaError_t(process().spoiled.load());
}

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) t_last = error;
  return error;
}

cudaError_t ready() {
  if (cudaError_t error = initialise()) return error;
  touch(t_device);
  return fault_of_device();
}

int current_device() { return t_device; }
long launches() { return process().launched; }

}  // namespace emulated

using namespace emulated;

// ---- for the other libraries of the emulated device

EMULATED_API int emulated_physical(int device) { return is_visible(device) ? process().visible[device] : -1; }

EMULATED_API int emulated_is_initialised() { return process().initialised_in == getpid(); }

EMULATED_API int emulated_is_touched(int device) {
  return emulated_is_initialised() && is_visible(device) && own_entry().touched[process().visible[device]];
}

EMULATED_API cudaError_t emulated_launch() {
  READY();  // a fault becomes visible in the calls after the launch, as with real kernels
  process().launched++;
  return cudaSuccess;
}

// ---- devices: as many as the environment says, of compute capability 8.0

EMULATED_API cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (cudaError_t error = initialise()) return remember(error);
  *count = int(process().visible.size());
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaGetDevice(int* device) {
  if (cudaError_t error = initialise()) return remember(error);
  *device = t_device;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = initialise()) return remember(error);
  if (!is_visible(device)) return remember(cudaErrorInvalidDevice);
  t_device = device;
  touch(device);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (cudaError_t error = initialise()) return remember(error);
  if (!is_visible(device)) return remember(cudaErrorInvalidDevice);
  cudaDeviceProp& p = *properties;
  memset(&p, 0, sizeof p);
  snprintf(p.name, sizeof p.name, "%s", NAME);
  unsigned char uuid[16];
  fill_uuid(uuid, process().visible[device]);
  memcpy(p.uuid.bytes, uuid, sizeof uuid);
  p.pciBusID = FIRST_BUS + process().visible[device];
  p.totalGlobalMem = memory_bytes();
  p.major = COMPUTE_MAJOR;
  p.minor = COMPUTE_MINOR;
  p.multiProcessorCount = 8;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.maxBlocksPerMultiProcessor = 16;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 99 << 10;
  p.sharedMemPerMultiprocessor = 100 << 10;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.totalConstMem = 64 << 10;
  p.l2CacheSize = 4 << 20;
  p.memPitch = 0x7fffffff;
  p.textureAlignment = 512;
  p.memoryBusWidth = 384;
  p.asyncEngineCount = 2;
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.streamPrioritiesSupported = 1;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = int(p.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    default: *value = 0;  // a feature that it does not have
  }
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (cudaError_t error = initialise()) return remember(error);
  if (!is_visible(device)) return remember(cudaErrorInvalidDevice);
  snprintf(text, length, "0000:%02X:00.0", FIRST_BUS + process().visible[device]);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  READY();
  *can = device != peer;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  READY();
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  READY();
  if (lowest) *lowest = 0;
  if (highest) *highest = -5;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION_NUMBER;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDA_VERSION_NUMBER;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaDeviceSynchronize() {
  READY();
  for (auto& stream : streams_of(t_device)) synchronise(*stream);
  READY();
  return cudaSuccess;
}

// ---- errors: the last one of a thread, and one that has spoiled the context, which stays

namespace {
struct ErrorText {
  const char *name, *text;
};
ErrorText text_of(cudaError_t error) {
#define ROW(code, text) \
  case code: return {#code, text};
  switch (error) {
    ROW(cudaSuccess, "no error")
    ROW(cudaErrorInvalidValue, "invalid argument")
    ROW(cudaErrorMemoryAllocation, "out of memory")
    ROW(cudaErrorInitializationError, "initialization error")
    ROW(cudaErrorNoDevice, "no CUDA-capable device is detected")
    ROW(cudaErrorInvalidDevice, "invalid device ordinal")
    ROW(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device (emulated: it runs no kernels)")
    ROW(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")
    ROW(cudaErrorInvalidResourceHandle, "invalid resource handle")
    ROW(cudaErrorNotReady, "device not ready")
    ROW(cudaErrorIllegalAddress, "an illegal memory access was encountered")
    ROW(cudaErrorLaunchTimeout, "the launch timed out and was terminated")
    ROW(cudaErrorAssert, "device-side assert triggered")
    ROW(cudaErrorLaunchFailure, "unspecified launch failure")
    ROW(cudaErrorNotSupported, "operation not supported (emulated device)")
    ROW(cudaErrorUnknown, "unknown error")
    default: return {"cudaErrorOther", "an error without a text on the emulated device"};
  }
#undef ROW
}
}  // namespace

EMULATED_API const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
EMULATED_API const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

EMULATED_API cudaError_t cudaPeekAtLastError() {
  int spoiled = process().spoiled;
  return spoiled ? cudaError_t(spoiled) : t_last;
}

EMULATED_API cudaError_t cudaGetLastError() {
  cudaError_t error = cudaPeekAtLastError();
  t_last = cudaSuccess;
  return error;
}

// ---- kernels: known by name, never run. Operators of torch run on the CPU (operators.cpp) and do not come here.

EMULATED_API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
EMULATED_API void __cudaRegisterFatBinaryEnd(void**) {}
EMULATED_API void __cudaUnregisterFatBinary(void**) {}
EMULATED_API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EMULATED_API char __cudaInitModule(void**) { return 0; }
EMULATED_API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                                         dim3*, int*) {
  process().kernels.emplace(host, name);
}

namespace {
thread_local struct {
  dim3 grid, block;
  size_t shared;
  void* stream;
} t_configuration;

cudaError_t refuse_kernel(const void* function) {
  READY();
  auto& kernels = process().kernels;
  auto found = kernels.find(function);
  fprintf(stderr, "emulated device: no kernel can run here: %s\n", found == kernels.end() ? "?" : found->second);
  return remember(cudaErrorNoKernelImageForDevice);
}
}  // namespace

EMULATED_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  t_configuration = {grid, block, shared, stream};
  return 0;
}
EMULATED_API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = t_configuration.grid;
  *block = t_configuration.block;
  *shared = t_configuration.shared;
  *static_cast<void**>(stream) = t_configuration.stream;
  return cudaSuccess;
}
EMULATED_API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = cudaKernel_t(const_cast<void*>(function));
  return cudaSuccess;
}
EMULATED_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel(kernel);
}
EMULATED_API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel(function);
}
EMULATED_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  return refuse_kernel(function);
}
EMULATED_API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_kernel(function);
}
EMULATED_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 80;
  return cudaSuccess;
}
EMULATED_API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EMULATED_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}
EMULATED_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                                unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// ---- profiler: nothing to start

EMULATED_API cudaError_t cudaProfilerStart() { return cudaSuccess; }
EMULATED_API cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- functions of the driver, by name: those that driver.cpp has; all others refuse, and say which it was

namespace {
int refuse_entry_point(...) { return cudaErrorNotSupported; }
}  // namespace

EMULATED_API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                                          unsigned long long, cudaDriverEntryPointQueryResult* status) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = driver ? dlsym(driver, symbol) : nullptr;
  if (!*function) {
    if (getenv("EMULATED_CUDA_VERBOSE")) fprintf(stderr, "emulated device: the driver has no %s\n", symbol);
    *function = reinterpret_cast<void*>(refuse_entry_point);
  }
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

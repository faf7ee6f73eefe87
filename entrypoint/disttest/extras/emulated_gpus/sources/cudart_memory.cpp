// Stand-in for libcudart.so.13: memory. Each allocation is an anonymous file in memory that is mapped, so that other
// processes can map it (IPC) or read it (nccl.cpp) by way of /proc; it is gone with its last process.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

#include "cudart.h"
#include "faults.h"
#include "registry.h"

namespace emulated {
namespace {

constexpr int PINNED = -1;  // host memory that the device may read

struct Allocation {
  size_t bytes;
  int device;     // of this process, or PINNED
  int physical;   // or PINNED
  int fd;         // -1: memory of others, only registered
  bool borrowed;  // another process's, which counts it
  unsigned long long id;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Allocation> allocations;  // by address
  long made = 0;
  unsigned long long ids = 0;
};
Memory& memory() {
  static Memory* const all = new Memory;
  return *all;
}

// With the lock held: the allocation that this address lies in.
std::map<uintptr_t, Allocation>::iterator find(const void* pointer) {
  auto& all = memory().allocations;
  auto found = all.upper_bound(uintptr_t(pointer));
  if (found == all.begin()) return all.end();
  --found;
  return uintptr_t(pointer) < found->first + found->second.bytes ? found : all.end();
}

bool is_pageable(const void* pointer) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  return find(pointer) == memory().allocations.end();
}

size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~size_t(4095); }

void count(const Allocation& allocation, int sign) {
  if (allocation.device != PINNED && !allocation.borrowed)
    own_entry().bytes[allocation.physical] += sign * int64_t(allocation.bytes);
}

cudaError_t allocate(void** pointer, size_t asked, int device) {
  *pointer = nullptr;
  if (!asked) return cudaSuccess;
  size_t bytes = whole_pages(asked);
  int physical = device == PINNED ? PINNED : emulated_physical(device);
  std::lock_guard<std::mutex> lock(memory().mutex);
  if (device != PINNED) {
    if (held_on(physical) + bytes > memory_bytes()) return cudaErrorMemoryAllocation;
    if (due_fault("oom", "device", physical, memory().made++)) return cudaErrorMemoryAllocation;
  }
  int fd = int(syscall(SYS_memfd_create, "emulated-gpu", 1u /* close on exec */));
  void* at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, bytes) == 0)
    at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) {
    if (fd >= 0) close(fd);
    return cudaErrorMemoryAllocation;
  }
  Allocation& made = memory().allocations[uintptr_t(at)] = {bytes, device, physical, fd, false, ++memory().ids};
  count(made, +1);
  *pointer = at;
  return cudaSuccess;
}

cudaError_t release(void* pointer) {
  if (!pointer) return cudaSuccess;
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = memory().allocations.find(uintptr_t(pointer));
  if (found == memory().allocations.end()) return cudaErrorInvalidValue;
  count(found->second, -1);
  if (found->second.fd >= 0) {
    munmap(pointer, found->second.bytes);
    close(found->second.fd);
  }
  memory().allocations.erase(found);
  return cudaSuccess;
}

}  // namespace
}  // namespace emulated

using namespace emulated;

EMULATED_API bool emulated_place(const void* pointer, size_t bytes, Place* place) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = find(pointer);
  if (found == memory().allocations.end() || found->second.fd < 0) return false;
  size_t offset = uintptr_t(pointer) - found->first;
  *place = {found->second.fd, offset};
  return offset + bytes <= found->second.bytes;
}

EMULATED_API bool emulated_extent(const void* pointer, Extent* extent) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = find(pointer);
  if (found == memory().allocations.end()) return false;
  *extent = {reinterpret_cast<void*>(found->first), found->second.bytes, found->second.device, found->second.id};
  return true;
}

// ---- allocations: the memory of a device is what all processes of the run hold on it together

EMULATED_API cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  READY();
  return remember(allocate(pointer, bytes, current_device()));
}

// Waits for the device, as the real one does.
EMULATED_API cudaError_t cudaFree(void* pointer) {
  READY();
  if (!pointer) return cudaSuccess;
  for (auto& stream : streams_of(current_device())) synchronise(*stream);
  return remember(release(pointer));
}

EMULATED_API cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }

EMULATED_API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  READY();
  if (auto stream = stream_of(handle)) stream->push([=] { release(pointer); });
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  READY();
  return remember(allocate(pointer, bytes, PINNED));
}

EMULATED_API cudaError_t cudaFreeHost(void* pointer) {
  READY();
  return remember(release(pointer));
}

EMULATED_API cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  READY();
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().allocations[uintptr_t(pointer)] = {bytes, PINNED, PINNED, -1, true, ++memory().ids};
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaHostUnregister(void* pointer) {
  READY();
  return remember(release(pointer));
}

EMULATED_API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  READY();
  *total = memory_bytes();
  *free = *total - std::min<size_t>(*total, held_on(emulated_physical(current_device())));
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  READY();
  memset(attributes, 0, sizeof *attributes);
  void* same = const_cast<void*>(pointer);
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = find(pointer);
  if (found == memory().allocations.end()) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    attributes->hostPointer = same;
  } else if (found->second.device == PINNED) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = current_device();
    attributes->hostPointer = attributes->devicePointer = same;
  } else {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = found->second.device;
    attributes->devicePointer = same;
  }
  return cudaSuccess;
}

// ---- copies: in the order of the stream; from pageable memory they are staged, to it the host waits

namespace {
void wait_if_slow(int physical) {
  if (faults().empty()) return;
  if (const Fault* fault = due_fault("slow-copies", "device", physical, 0)) usleep(fault->number("us", 0));
}

cudaError_t put(cudaStream_t handle, const void* to, const void* from, std::function<void()> copy) {
  auto stream = stream_of(handle);
  if (!stream) return remember(cudaErrorInvalidResourceHandle);
  if (cudaError_t error = emulated_launch()) return error;
  int physical = emulated_physical(stream->device);
  stream->push([=] {
    wait_if_slow(physical);
    copy();
  });
  if ((to && is_pageable(to))) synchronise(*stream);
  READY();
  return cudaSuccess;
}
}  // namespace

EMULATED_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  READY();
  if (!bytes) return cudaSuccess;
  if (!is_pageable(from)) return put(stream, to, from, [=] { memmove(to, from, bytes); });
  auto staged = std::make_shared<std::string>(static_cast<const char*>(from), bytes);
  return put(stream, to, from, [=] { memcpy(to, staged->data(), bytes); });
}

EMULATED_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

EMULATED_API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

EMULATED_API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                           size_t height, cudaMemcpyKind, cudaStream_t handle) {
  READY();
  auto rows = [=] {
    for (size_t row = 0; row < height; row++)
      memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  };
  if (cudaError_t error = put(handle, to, from, rows)) return error;
  return is_pageable(from) ? cudaStreamSynchronize(handle) : cudaSuccess;
}

EMULATED_API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  READY();
  return put(stream, nullptr, nullptr, [=] { memset(to, value, bytes); });
}

EMULATED_API cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

int emulated::open_of(pid_t pid, int fd) {
  std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

// ---- IPC: a handle names the file of the process that exported it, which must live

namespace {
struct Exported {
  pid_t pid;
  int fd, physical;
  size_t bytes;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));

int visible_index(int physical) {
  for (int device = 0; emulated_physical(device) >= 0; device++)
    if (emulated_physical(device) == physical) return device;
  return -1;
}
}  // namespace

EMULATED_API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  READY();
  std::lock_guard<std::mutex> lock(memory().mutex);
  auto found = find(pointer);
  if (found == memory().allocations.end() || found->second.fd < 0) return remember(cudaErrorInvalidValue);
  Exported exported{getpid(), found->second.fd, found->second.physical, found->second.bytes};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &exported, sizeof exported);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
  READY();
  Exported exported;
  memcpy(&exported, &handle, sizeof exported);
  int device = visible_index(exported.physical);
  if (device < 0) return remember(cudaErrorInvalidDevice);
  int fd = open_of(exported.pid, exported.fd);
  if (fd < 0) return remember(cudaErrorInvalidValue);
  void* at = mmap(nullptr, exported.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    close(fd);
    return remember(cudaErrorInvalidValue);
  }
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().allocations[uintptr_t(at)] = {exported.bytes, device, exported.physical, fd, true, ++memory().ids};
  *pointer = at;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  READY();
  return remember(release(pointer));
}

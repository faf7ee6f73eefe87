// Stand-in for libnvidia-ml.so.1: the same devices as in cudart.cpp, the processes that hold them (registry.h), and
// the faults of faults.h. What is not here reads as "function not found", what real GPUs may lack as "not supported".
#include <unistd.h>

#include "faults.h"
#include "registry.h"

using namespace emulated;

namespace {

enum Result { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };

// A handle is the index on the machine, from 1.
using Handle = void*;
int index_of(Handle handle) { return int(reinterpret_cast<uintptr_t>(handle)) - 1; }
Handle handle_of(int index) { return reinterpret_cast<Handle>(uintptr_t(index + 1)); }

bool is_lost(int index) {
  return (registry() && registry()->lost[index]) || due_fault("vanish", "device", index, 0);
}

int write(char* text, unsigned length, const std::string& value) {
  if (value.size() >= length) return INSUFFICIENT_SIZE;
  strcpy(text, value.c_str());
  return OK;
}

// What every question to a device begins with.
#define DEVICE(name, handle)                                                  \
  const int name = index_of(handle);                                          \
  if (name < 0 || name >= device_count()) return INVALID_ARGUMENT;            \
  if (is_lost(name)) return LOST

}  // namespace

// ---- the library and the driver

EMULATED_API int nvmlInit_v2() {
  if (!device_count()) return NOT_LOADED;
  start_thread_of_driver();
  return OK;
}
EMULATED_API int nvmlInit() { return nvmlInit_v2(); }
EMULATED_API int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
EMULATED_API int nvmlShutdown() { return OK; }
EMULATED_API const char* nvmlErrorString(int result) {
  switch (result) {
    case OK: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}
EMULATED_API int nvmlSystemGetDriverVersion(char* text, unsigned length) { return write(text, length, "580.0-emulated"); }
EMULATED_API int nvmlSystemGetNVMLVersion(char* text, unsigned length) { return write(text, length, "13.580.0-emulated"); }
EMULATED_API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDA_VERSION_NUMBER;
  return OK;
}
EMULATED_API int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EMULATED_API int nvmlSystemGetProcessName(unsigned pid, char* text, unsigned length) {
  char path[256];
  ssize_t got = readlink(("/proc/" + std::to_string(pid) + "/exe").c_str(), path, sizeof path);
  return got < 0 ? NOT_FOUND : write(text, length, std::string(path, got));
}

// ---- which devices there are

EMULATED_API int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = device_count();
  return OK;
}
EMULATED_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  if (int(index) >= device_count()) return INVALID_ARGUMENT;
  *handle = handle_of(index);
  return is_lost(index) ? LOST : OK;
}
EMULATED_API int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  for (int index = 0; index < device_count(); index++)
    if (uuid_text(index) == uuid) return nvmlDeviceGetHandleByIndex_v2(index, handle);
  return NOT_FOUND;
}
EMULATED_API int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Handle* handle) {
  unsigned domain, bus;
  if (sscanf(bus_id, "%x:%x", &domain, &bus) != 2 || int(bus) < FIRST_BUS) return NOT_FOUND;
  int index = int(bus) - FIRST_BUS;
  return index < device_count() ? nvmlDeviceGetHandleByIndex_v2(index, handle) : NOT_FOUND;
}
EMULATED_API int nvmlDeviceGetUUID(Handle handle, char* text, unsigned length) {
  DEVICE(index, handle);
  return write(text, length, uuid_text(index));
}
EMULATED_API int nvmlDeviceGetName(Handle handle, char* text, unsigned length) {
  DEVICE(index, handle);
  return write(text, length, NAME);
}
EMULATED_API int nvmlDeviceGetIndex(Handle handle, unsigned* value) {
  DEVICE(index, handle);
  *value = index;
  return OK;
}
EMULATED_API int nvmlDeviceGetMinorNumber(Handle handle, unsigned* value) { return nvmlDeviceGetIndex(handle, value); }

struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, id, subsystem_id;
  char bus_id[32];
};
EMULATED_API int nvmlDeviceGetPciInfo_v3(Handle handle, PciInfo* info) {
  DEVICE(index, handle);
  memset(info, 0, sizeof *info);
  info->bus = FIRST_BUS + index;
  snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "0000:%02X:00.0", info->bus);
  snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
  return OK;
}
EMULATED_API int nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  DEVICE(index, handle);
  *major = COMPUTE_MAJOR;
  *minor = COMPUTE_MINOR;
  return OK;
}

// ---- memory and who holds it

struct MemoryInfo {
  unsigned long long total, free, used;
};
EMULATED_API int nvmlDeviceGetMemoryInfo(Handle handle, MemoryInfo* info) {
  DEVICE(index, handle);
  unsigned long long used = std::min<uint64_t>(held_on(index), memory_bytes());
  *info = {memory_bytes(), memory_bytes() - used, used};
  return OK;
}
struct MemoryInfo2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
EMULATED_API int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryInfo2* info) {
  MemoryInfo plain;
  if (int result = nvmlDeviceGetMemoryInfo(handle, &plain)) return result;
  *info = {info->version, plain.total, 0, plain.free, plain.used};
  return OK;
}

struct ProcessInfo {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
// With room for too few it says how many there are.
EMULATED_API int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo* processes) {
  DEVICE(index, handle);
  unsigned found = 0, room = processes ? *count : 0;
  for (int i = 0; registry() && i < Registry::MOST; i++) {
    const Holder& holder = registry()->holders[i];
    if (!holder.touched[index] || !is_alive(holder)) continue;
    if (found < room) processes[found] = {unsigned(holder.pid.load()), holder.held(index), ~0u, ~0u};
    found++;
  }
  *count = found;
  return found > room ? INSUFFICIENT_SIZE : OK;
}
EMULATED_API int nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, ProcessInfo* processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}
EMULATED_API int nvmlDeviceGetComputeRunningProcesses(Handle handle, unsigned* count, ProcessInfo* processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}
EMULATED_API int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, ProcessInfo*) {
  DEVICE(index, handle);
  *count = 0;
  return OK;
}

// ---- state

EMULATED_API int nvmlDeviceGetPersistenceMode(Handle handle, int* mode) {
  DEVICE(index, handle);
  *mode = 1;
  return OK;
}
EMULATED_API int nvmlDeviceGetComputeMode(Handle handle, int* mode) {
  DEVICE(index, handle);
  *mode = 0;
  return OK;
}
EMULATED_API int nvmlDeviceGetTemperature(Handle handle, int, unsigned* celsius) {
  DEVICE(index, handle);
  *celsius = 40;
  return OK;
}
EMULATED_API int nvmlDeviceGetMigMode(Handle, unsigned*, unsigned*) { return NOT_SUPPORTED; }

// ---- errors of memory

EMULATED_API int nvmlDeviceGetEccMode(Handle handle, int* current, int* pending) {
  DEVICE(index, handle);
  *current = *pending = 1;
  return OK;
}
EMULATED_API int nvmlDeviceGetTotalEccErrors(Handle handle, int kind, int, unsigned long long* count) {
  DEVICE(index, handle);
  const Fault* fault = due_fault("ecc", "device", index, 0);
  const int uncorrected = 1;
  *count = fault && kind == uncorrected ? fault->number("count", 1) : 0;
  return OK;
}
EMULATED_API int nvmlDeviceGetRemappedRows(Handle handle, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                                           unsigned* failed) {
  DEVICE(index, handle);
  *corrected = *uncorrected = *failed = 0;
  *pending = due_fault("remap", "device", index, 0) != nullptr;
  return OK;
}

// ---- events: only Xids. A set remembers the devices that were registered, and tells each fault once.

struct EventSet {
  std::vector<int> devices;
};
struct EventData {
  Handle device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
namespace {
constexpr unsigned long long XID = 8;
}
EMULATED_API int nvmlDeviceGetSupportedEventTypes(Handle handle, unsigned long long* types) {
  DEVICE(index, handle);
  *types = XID;
  return OK;
}
EMULATED_API int nvmlEventSetCreate(EventSet** set) {
  *set = new EventSet;
  return OK;
}
EMULATED_API int nvmlEventSetFree(EventSet* set) {
  delete set;
  return OK;
}
EMULATED_API int nvmlDeviceRegisterEvents(Handle handle, unsigned long long types, EventSet* set) {
  DEVICE(index, handle);
  if (types != XID) return NOT_SUPPORTED;
  set->devices.push_back(index);
  return OK;
}
EMULATED_API int nvmlEventSetWait_v2(EventSet* set, EventData* event, unsigned limit_ms) {
  for (unsigned waited_ms = 0;; waited_ms += 10) {
    for (auto device = set->devices.begin(); device != set->devices.end(); ++device)
      if (const Fault* fault = due_fault("xid", "device", *device, 0)) {
        *event = {handle_of(*device), XID, (unsigned long long)fault->number("code", 79), ~0u, ~0u};
        set->devices.erase(device);
        return OK;
      }
    if (waited_ms >= limit_ms) return TIMEOUT;
    usleep(10000);
  }
}

// ---- links: all devices reach each other over the host bridge, without NVLink

EMULATED_API int nvmlDeviceGetP2PStatus(Handle, Handle, int capability, int* status) {
  const int nvlink = 2, fine = 0, not_supported = 1;
  *status = capability == nvlink ? not_supported : fine;
  return OK;
}
EMULATED_API int nvmlDeviceGetTopologyCommonAncestor(Handle, Handle, int* level) {
  *level = 30;  // the host bridge
  return OK;
}
EMULATED_API int nvmlDeviceGetNvLinkState(Handle, unsigned, int*) { return NOT_SUPPORTED; }
EMULATED_API int nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) { return NOT_SUPPORTED; }
EMULATED_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, PciInfo*) { return NOT_SUPPORTED; }
EMULATED_API int nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return NOT_SUPPORTED; }

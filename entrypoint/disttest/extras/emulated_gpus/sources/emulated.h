// What the libraries of the emulated device share: which devices there are, and how they are called.
//
//   EMULATED_CUDA_DEVICES    how many (default 1, at most 16)
//   EMULATED_CUDA_MEMORY_MB  memory of each (default 4096)
//   EMULATED_CUDA_STATE      a folder in which processes show NVML what they hold (registry.h); none: nobody is shown
//   EMULATED_CUDA_SPIN       1: a thread that waits for a device keeps its processor busy, as CUDA's do (default 0)
//   EMULATED_CUDA_FAULTS     what is to go wrong (faults.h)
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define EMULATED_API extern "C" __attribute__((visibility("default")))

namespace emulated {

constexpr int MOST_DEVICES = 16;
constexpr int CUDA_VERSION_NUMBER = 13000;
constexpr const char* NAME = "Emulated GPU (host memory)";
constexpr int COMPUTE_MAJOR = 8, COMPUTE_MINOR = 0;
// What a process holds on a device that it has touched, beside what it allocates: a context.
constexpr size_t CONTEXT_BYTES = size_t(64) << 20;
// Bus 0x10 is the first device's.
constexpr int FIRST_BUS = 0x10;

inline long number_from(const char* variable, long otherwise) {
  const char* text = getenv(variable);
  return text && *text ? atol(text) : otherwise;
}

inline int device_count() {
  static const int count = std::clamp<long>(number_from("EMULATED_CUDA_DEVICES", 1), 0, MOST_DEVICES);
  return count;
}

inline size_t memory_bytes() {
  static const size_t bytes = size_t(number_from("EMULATED_CUDA_MEMORY_MB", 4096)) << 20;
  return bytes;
}

inline void fill_uuid(unsigned char (&bytes)[16], int device) {
  memset(bytes, 0, 16);
  memset(bytes, 0xee, 4);
  bytes[15] = device;
}

inline std::string uuid_text(int device) {
  char text[64];
  snprintf(text, sizeof text, "GPU-eeeeeeee-0000-0000-0000-0000000000%02x", device);
  return text;
}

// The thread of libcuda.so.1 that waits for events: CUDA starts it, and so does NVML, which loads that library without
// initialising CUDA. Forks of such a process can use CUDA all the same.
inline void start_thread_of_driver() {
  if (void* start = dlsym(RTLD_DEFAULT, "emulated_start_thread")) reinterpret_cast<void (*)()>(start)();
}

}  // namespace emulated

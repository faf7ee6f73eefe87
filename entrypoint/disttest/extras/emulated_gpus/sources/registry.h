// Who holds what on which device: a table in $EMULATED_CUDA_STATE/devices that all processes of a run map.
// Entries of processes that have died are skipped by readers and taken over by the next process.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "emulated.h"

namespace emulated {

constexpr int CLAIMED = -1;  // an entry that is being filled in

struct Holder {
  std::atomic<int> pid;
  std::atomic<unsigned long long> started;  // the kernel's number, so that a pid that is used again is not this process
  std::atomic<bool> touched[MOST_DEVICES];
  std::atomic<uint64_t> bytes[MOST_DEVICES];

  uint64_t held(int device) const { return touched[device] ? bytes[device] + CONTEXT_BYTES : 0; }
};

struct Registry {
  static constexpr int MOST = 512;
  Holder holders[MOST];  // a fresh file is all zeros
  std::atomic<bool> lost[MOST_DEVICES];  // a process has seen it vanish
};

// Field 22 of /proc/PID/stat; 0: there is no such process, or it has ended and only waits to be collected.
inline unsigned long long start_time(int pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "r");
  if (!file) return 0;
  size_t length = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[length] = 0;
  const char* at = strrchr(text, ')');  // a name may have blanks and brackets
  if (!at || strchr("ZX", at[2])) return 0;
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at, nullptr, 10) : 0;
}

inline bool is_alive(const Holder& holder) {
  int pid = holder.pid;
  return pid > 0 && start_time(pid) == holder.started;
}

inline Registry* registry() {
  static Registry* const mapped = []() -> Registry* {
    const char* folder = getenv("EMULATED_CUDA_STATE");
    if (!folder || !*folder) return nullptr;
    int fd = open((std::string(folder) + "/devices").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return nullptr;
    void* at = MAP_FAILED;
    if (ftruncate(fd, sizeof(Registry)) == 0)
      at = mmap(nullptr, sizeof(Registry), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? nullptr : static_cast<Registry*>(at);
  }();
  return mapped;
}

// This process's own entry; one that nobody sees where there is no table.
inline Holder& own_entry() {
  static Holder unseen;
  static Holder* entry = &unseen;
  static std::atomic<int> owner{0};
  if (owner == getpid()) return *entry;
  owner = getpid();
  entry = &unseen;
  for (int i = 0; registry() && i < Registry::MOST; i++) {
    Holder& holder = registry()->holders[i];
    int before = holder.pid;
    if (before == CLAIMED || (before && is_alive(holder))) continue;
    if (!holder.pid.compare_exchange_strong(before, CLAIMED)) continue;
    holder.started = start_time(getpid());
    for (int device = 0; device < MOST_DEVICES; device++) holder.touched[device] = false, holder.bytes[device] = 0;
    holder.pid = getpid();
    entry = &holder;
    break;
  }
  return *entry;
}

inline uint64_t held_on(int device) {
  if (!registry()) return own_entry().held(device);
  uint64_t bytes = 0;
  for (const Holder& holder : registry()->holders)
    if (holder.touched[device] && is_alive(holder)) bytes += holder.held(device);
  return bytes;
}

}  // namespace emulated

// What the files of libcudart.so.13 share.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "device.h"

namespace emulated {

// Keep an error for cudaGetLastError, and return it.
cudaError_t remember(cudaError_t error);

// Initialise CUDA if need be. Fails in a process that was forked from one in which CUDA was initialised, without a
// device, and for ever after an error that has spoiled the context.
cudaError_t ready();
#define READY()                                                           \
  do {                                                                    \
    cudaError_t not_ready = emulated::ready();                            \
    if (not_ready != cudaSuccess) return emulated::remember(not_ready);   \
  } while (0)

int current_device();
long launches();

// A stream: a queue and, once it was used, the thread that works it off in order.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, int priority) : device(device), priority(priority) {}
  void push(std::function<void()> work);
  void drain();  // returns when all that was pushed before is done
  bool is_idle();
  void retire();  // the thread ends when the queue is empty

  const int device, priority;

 private:
  void work_off();

  std::mutex mutex_;
  std::condition_variable filled_, done_;
  std::deque<std::function<void()>> queue_;
  uint64_t pushed_ = 0, finished_ = 0;
  bool has_thread_ = false, retired_ = false;
};

// Another process's file; -1: it has ended, or has no such file.
int open_of(pid_t pid, int fd);

// The stream of a handle; those that stand for the default stream: the current device's.
std::shared_ptr<Stream> stream_of(cudaStream_t handle);
std::vector<std::shared_ptr<Stream>> streams_of(int device);
// Wait as a synchronising call of the device does: for ever, where that fault was asked for.
void synchronise(Stream& stream);

}  // namespace emulated

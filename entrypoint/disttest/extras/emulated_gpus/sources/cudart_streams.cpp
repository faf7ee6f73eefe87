// Stand-in for libcudart.so.13: streams and events. Work of one stream is done in order by a thread of its own;
// streams order themselves among each other only by events, so a wait that a program forgets is missing here too.
// The default stream is a stream like the others: it does not wait for those made without cudaStreamNonBlocking.
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <map>
#include <thread>

#include "cudart.h"
#include "faults.h"

namespace emulated {

void Stream::push(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([self = shared_from_this()] { self->work_off(); }).detach();
  }
  queue_.push_back(std::move(work));
  pushed_++;
  filled_.notify_one();
}

void Stream::work_off() {
  pthread_setname_np(pthread_self(), "emulated-gpu");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    filled_.wait(lock, [this] { return !queue_.empty() || retired_; });
    if (queue_.empty()) return;
    auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    finished_++;
    done_.notify_all();
  }
}

void Stream::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t all = pushed_;
  static const bool spins = number_from("EMULATED_CUDA_SPIN", 0);
  while (spins && finished_ < all) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  done_.wait(lock, [&] { return finished_ >= all; });
}

bool Stream::is_idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return finished_ == pushed_;
}

void Stream::retire() {
  std::lock_guard<std::mutex> lock(mutex_);
  retired_ = true;
  filled_.notify_one();
}

namespace {

struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, std::shared_ptr<Stream>> made;
  std::map<int, std::shared_ptr<Stream>> defaults;  // by device
};
Streams& streams() {
  static Streams* const all = new Streams;
  return *all;
}

// 0, cudaStreamLegacy and cudaStreamPerThread.
bool is_default(cudaStream_t handle) { return uintptr_t(handle) <= 2; }

}  // namespace

std::shared_ptr<Stream> stream_of(cudaStream_t handle) {
  std::lock_guard<std::mutex> lock(streams().mutex);
  if (!is_default(handle)) {
    auto found = streams().made.find(handle);
    return found == streams().made.end() ? nullptr : found->second;
  }
  auto& stream = streams().defaults[current_device()];
  if (!stream) stream = std::make_shared<Stream>(current_device(), 0);
  return stream;
}

std::vector<std::shared_ptr<Stream>> streams_of(int device) {
  std::lock_guard<std::mutex> lock(streams().mutex);
  std::vector<std::shared_ptr<Stream>> found;
  for (auto& [index, stream] : streams().defaults)
    if (index == device) found.push_back(stream);
  for (auto& [handle, stream] : streams().made)
    if (stream->device == device) found.push_back(stream);
  return found;
}

namespace {
void hang_if_asked(int device) {
  while (!faults().empty() && due_fault("hang", "device", emulated_physical(device), launches())) usleep(100000);
}
}  // namespace

void synchronise(Stream& stream) {
  hang_if_asked(stream.device);
  stream.drain();
}

}  // namespace emulated

using namespace emulated;

#define STREAM(name, handle)               \
  auto name = emulated::stream_of(handle); \
  if (!name) return emulated::remember(cudaErrorInvalidResourceHandle)

EMULATED_API void emulated_enqueue(cudaStream_t handle, void (*function)(void*), void* argument) {
  stream_of(handle)->push([=] { function(argument); });
}

// ---- streams

EMULATED_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
  READY();
  auto stream = std::make_shared<Stream>(current_device(), priority);
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  std::lock_guard<std::mutex> lock(streams().mutex);
  streams().made[*handle] = stream;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }

EMULATED_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

// What is in the queue is still done.
EMULATED_API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  STREAM(stream, handle);
  std::lock_guard<std::mutex> lock(streams().mutex);
  streams().made.erase(handle);
  stream->retire();
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  READY();
  STREAM(stream, handle);
  synchronise(*stream);
  READY();
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  READY();
  STREAM(stream, handle);
  return stream->is_idle() ? cudaSuccess : cudaErrorNotReady;
}

EMULATED_API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  STREAM(stream, handle);
  *priority = stream->priority;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  READY();
  STREAM(stream, handle);
  stream->push([=] { function(handle, cudaSuccess, data); });
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  READY();
  STREAM(stream, handle);
  stream->push([=] { function(data); });
  return cudaSuccess;
}

// ---- graphs: nothing is ever captured; cudart_refused.cpp refuses to begin

EMULATED_API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                                  cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                                  size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// ---- events: each record is a moment in a stream that the stream's thread reaches

namespace {

class Moment {
 public:
  virtual ~Moment() = default;
  virtual void reach() = 0;
  virtual void await() = 0;
  virtual bool is_reached() = 0;
  std::chrono::steady_clock::time_point at() const { return at_; }

 protected:
  std::chrono::steady_clock::time_point at_;
};

class OwnMoment : public Moment {
 public:
  void reach() override {
    std::lock_guard<std::mutex> lock(mutex_);
    at_ = std::chrono::steady_clock::now();
    reached_ = true;
    told_.notify_all();
  }
  void await() override {
    std::unique_lock<std::mutex> lock(mutex_);
    told_.wait(lock, [this] { return reached_; });
  }
  bool is_reached() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return reached_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  bool reached_ = false;
};

// What processes share of an event: how often it was recorded, and which of the last records were reached. Those of
// different streams are reached in any order, and who waits for one waits for no other.
struct Records {
  static constexpr uint32_t KEPT = 64;
  std::atomic<uint32_t> recorded;
  std::atomic<uint32_t> reached[KEPT];  // of the records that share a place, the last one
};

class SharedMoment : public Moment {
 public:
  SharedMoment(std::shared_ptr<Records> records, uint32_t number) : records_(std::move(records)), number_(number) {}
  void reach() override {
    place() = number_;
    syscall(SYS_futex, &place(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void await() override {
    for (uint32_t seen; (seen = place()) < number_;)
      syscall(SYS_futex, &place(), FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
  bool is_reached() override { return place() >= number_; }

 private:
  std::atomic<uint32_t>& place() { return records_->reached[number_ % Records::KEPT]; }

  const std::shared_ptr<Records> records_;
  const uint32_t number_;
};

struct Event {
  explicit Event(int device) : device(device) {}
  const int device;
  std::mutex mutex;
  std::shared_ptr<Moment> recorded;  // none: never recorded, which counts as reached
  std::shared_ptr<Records> shared;   // of an event that several processes have
  int fd = -1;                       // what these lie in, of the process that made it
};

std::shared_ptr<Records> map_records(int fd) {
  void* at = mmap(nullptr, sizeof(Records), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  return {static_cast<Records*>(at), [](Records* records) { munmap(records, sizeof *records); }};
}

// A fresh file is all zeros.
bool share(Event& event) {
  event.fd = int(syscall(SYS_memfd_create, "emulated-gpu", 1u /* close on exec */));
  if (event.fd < 0 || ftruncate(event.fd, sizeof(Records))) return false;
  event.shared = map_records(event.fd);
  return event.shared != nullptr;
}

std::shared_ptr<Moment> moment_of(cudaEvent_t handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->shared) return std::make_shared<SharedMoment>(event->shared, event->shared->recorded);
  return event->recorded;
}

std::shared_ptr<Moment> next_moment(Event& event) {
  std::lock_guard<std::mutex> lock(event.mutex);
  if (!event.shared) return event.recorded = std::make_shared<OwnMoment>();
  uint32_t number = ++event.shared->recorded;
  if (number > Records::KEPT) SharedMoment(event.shared, number - Records::KEPT).await();  // its place is taken over
  return std::make_shared<SharedMoment>(event.shared, number);
}

}  // namespace

EMULATED_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  READY();
  auto event = std::make_unique<Event>(current_device());
  if ((flags & cudaEventInterprocess) && !share(*event)) return remember(cudaErrorMemoryAllocation);
  *handle = reinterpret_cast<cudaEvent_t>(event.release());
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

EMULATED_API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  if (event->fd >= 0) close(event->fd);
  delete event;
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  READY();
  STREAM(stream, stream_handle);
  auto* event = reinterpret_cast<Event*>(handle);
  if (event->device != stream->device) return remember(cudaErrorInvalidResourceHandle);
  stream->push([moment = next_moment(*event)] { moment->reach(); });
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  return cudaEventRecord(handle, stream);
}

EMULATED_API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  READY();
  auto moment = moment_of(handle);
  return !moment || moment->is_reached() ? cudaSuccess : cudaErrorNotReady;
}

EMULATED_API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  READY();
  hang_if_asked(reinterpret_cast<Event*>(handle)->device);
  if (auto moment = moment_of(handle)) moment->await();
  READY();
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned) {
  READY();
  STREAM(stream, stream_handle);
  if (auto moment = moment_of(handle)) stream->push([moment] { moment->await(); });
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  READY();
  auto first = moment_of(begin), second = moment_of(end);
  if (!first || !second) return remember(cudaErrorInvalidResourceHandle);
  if (!first->is_reached() || !second->is_reached()) return remember(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(second->at() - first->at()).count();
  return cudaSuccess;
}

// ---- events of several processes: a handle names the file of the process that made it, which must live

namespace {
struct SharedEvent {
  pid_t pid;
  int fd;
};
static_assert(sizeof(SharedEvent) <= sizeof(cudaIpcEventHandle_t));
}  // namespace

EMULATED_API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t given) {
  READY();
  auto* event = reinterpret_cast<Event*>(given);
  if (event->fd < 0) return remember(cudaErrorInvalidResourceHandle);  // made without cudaEventInterprocess
  SharedEvent shared{getpid(), event->fd};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

EMULATED_API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* handle, cudaIpcEventHandle_t given) {
  READY();
  SharedEvent shared;
  memcpy(&shared, &given, sizeof shared);
  int fd = open_of(shared.pid, shared.fd);
  if (fd < 0) return remember(cudaErrorInvalidValue);
  auto event = std::make_unique<Event>(current_device());
  event->shared = map_records(fd);
  close(fd);
  if (!event->shared) return remember(cudaErrorInvalidValue);
  *handle = reinterpret_cast<cudaEvent_t>(event.release());
  return cudaSuccess;
}

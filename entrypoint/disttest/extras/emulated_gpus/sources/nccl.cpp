// Stand-in for libnccl.so.2. The ranks of a communicator share a segment of memory with a channel for each pair of
// them, in each direction. What is small lies in the channel itself, so that a sender need not wait for the receiver,
// as with NCCL's buffers; what is large the receiver reads from the sender's memory, and the sender waits for that.
//
// Launches of a communicator run in the order in which they were launched, whatever stream they are on. A collective
// that does not match what the others have called waits for ever, as the real one may.
#define __CUDA_FP16_H__  // nccl.h wants these headers, which need nvcc, and nothing of them
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "faults.h"
#include "nccl_arithmetic.h"
#include "registry.h"

using namespace emulated;

#define NCCL_FUNCTION EMULATED_API ncclResult_t

namespace {

constexpr int MOST_RANKS = 64;
constexpr size_t EAGER_BYTES = 128 << 10;
constexpr uint64_t DEPTH = 8;  // messages that a channel holds; pages that none was in take no memory

enum class Kind { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AllToAll, Gather, Scatter, Send, Receive };
const char* const KIND_NAMES[] = {"AllReduce", "Reduce",  "Broadcast", "AllGather", "ReduceScatter",
                                  "AllToAll",  "Gather",  "Scatter",   "Send",      "Recv"};

// ---- what the ranks share

// What a rank says of its part of a collective; those of one collective have to be equal.
struct Header {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t operation;
  int root;
  uint64_t count;
  bool operator==(const Header&) const = default;
};

struct Message {
  Header header;
  double factor;  // of a reduction that multiplies before it adds
  size_t bytes;
  bool eager;   // the bytes lie in the channel
  Place place;  // else here, in the sender's memory
};

struct Channel {
  std::atomic<uint64_t> posted, taken;
  Message messages[DEPTH];
  char eager[DEPTH][EAGER_BYTES];
};

struct Member {
  std::atomic<int> pid, device;
  std::atomic<uint64_t> split, split_done;  // how many splits of this communicator it has begun, and ended
  int color, key;
  ncclUniqueId child;  // of the communicator that it makes as the first rank of its color
  std::atomic<uint64_t> child_made;
};

// A fresh file is all zeros.
struct Segment {
  std::atomic<int> joined;
  std::atomic<uint32_t> bell;  // changes when anything does
  Member members[MOST_RANKS];
  Channel channels[];  // for collectives, and then for sends and receives: from each rank to each
};

size_t segment_bytes(int ranks) { return sizeof(Segment) + size_t(2) * ranks * ranks * sizeof(Channel); }

}  // namespace

struct ncclComm {
  Segment* segment;
  int rank, ranks, device;
  std::atomic<bool> aborted{false};
  std::atomic<int> error{ncclSuccess};
  std::atomic<uint64_t> turn{0}, begun{0};
  uint64_t tickets = 0, splits = 0;
  std::map<int, double> factors;  // by the operation that was made for them
  int next_operation = ncclNumOps;
  std::mutex mutex;  // of the above four, and the text below
  std::string last;

  bool is_stopped() const { return aborted || error; }
  Channel& channel(bool collective, int from, int to) {
    return segment->channels[((collective ? 0 : ranks) + from) * ranks + to];
  }
};

namespace {

using Comm = ncclComm;

void note(Comm& comm, const std::string& text) {
  std::lock_guard<std::mutex> lock(comm.mutex);
  comm.last = text;
  if (getenv("NCCL_DEBUG"))
    fprintf(stderr, "emulated NCCL [%d, rank %d of %d] %s\n", getpid(), comm.rank, comm.ranks, text.c_str());
}

void ring(Comm& comm) {
  comm.segment->bell++;
  syscall(SYS_futex, &comm.segment->bell, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

// Wait until it is so; false: the communicator was aborted, or has failed.
bool wait_until(Comm& comm, const std::function<bool()>& is_so) {
  for (;;) {
    uint32_t seen = comm.segment->bell;
    if (is_so()) return true;
    if (comm.is_stopped()) return false;
    timespec limit{0, 20'000'000};  // an error may come without a bell
    syscall(SYS_futex, &comm.segment->bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
}

void wait_for_ever(Comm& comm) {
  wait_until(comm, [] { return false; });
}

void fail(Comm& comm, ncclResult_t error, const std::string& text) {
  note(comm, text);
  comm.error = error;
  ring(comm);
}

// ---- one message

bool has_room(Channel& channel) { return channel.posted - channel.taken < DEPTH; }

// There has to be room. Returns the number that `taken` reaches when the bytes are no longer needed here.
uint64_t post(Comm& comm, Channel& channel, Message message, const void* data) {
  uint64_t slot = channel.posted % DEPTH;
  message.eager = message.bytes <= EAGER_BYTES;
  if (message.eager)
    memcpy(channel.eager[slot], data, message.bytes);
  else if (!emulated_place(data, message.bytes, &message.place))
    fail(comm, ncclInvalidArgument, std::string(KIND_NAMES[int(message.header.kind)]) + " of what is no device memory");
  channel.messages[slot] = message;
  uint64_t ticket = ++channel.posted;
  ring(comm);
  return message.eager ? 0 : ticket;
}

// Read from another process's memory by way of its file.
bool read_from(Comm& comm, int peer, const Place& place, char* to, size_t bytes) {
  std::string path = "/proc/" + std::to_string(comm.segment->members[peer].pid) + "/fd/" + std::to_string(place.fd);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  size_t done = 0;
  for (ssize_t got = 1; fd >= 0 && done < bytes && got > 0; done += std::max<ssize_t>(got, 0))
    got = pread(fd, to + done, bytes - done, off_t(place.offset + done));
  if (fd >= 0) close(fd);
  if (done == bytes) return true;
  fail(comm, ncclRemoteError, "reading from rank " + std::to_string(peer) + " failed: it has ended");
  return false;
}

// There has to be a message. Copies as many bytes as it has and as are wanted.
bool take(Comm& comm, Channel& channel, int peer, char* to, size_t bytes) {
  uint64_t slot = channel.taken % DEPTH;
  const Message& message = channel.messages[slot];
  bytes = std::min(bytes, message.bytes);
  if (message.eager)
    memcpy(to, channel.eager[slot], bytes);
  else if (!read_from(comm, peer, message.place, to, bytes))
    return false;
  channel.taken++;
  ring(comm);
  return true;
}

// ---- collectives: who sends what to whom, and what is made of it

struct Task {
  Comm* comm;
  cudaStream_t stream;
  Kind kind;
  const void* from;
  void* to;
  size_t count;  // elements, of each rank's part
  ncclDataType_t type;
  ncclRedOp_t operation = ncclSum;
  int root = 0;  // of sends and receives: the peer

  bool is_collective() const { return kind != Kind::Send && kind != Kind::Receive; }
  bool reduces() const { return kind == Kind::AllReduce || kind == Kind::Reduce || kind == Kind::ReduceScatter; }
  bool gathers() const { return kind == Kind::AllGather || kind == Kind::Gather || kind == Kind::AllToAll; }
  bool has_part_for_each() const {
    return kind == Kind::ReduceScatter || kind == Kind::AllToAll || kind == Kind::Scatter;
  }
  bool goes(int sender, int receiver) const {
    switch (kind) {
      case Kind::Broadcast:
      case Kind::Scatter: return sender == root;
      case Kind::Reduce:
      case Kind::Gather: return receiver == root;
      default: return true;
    }
  }
  size_t bytes() const { return count * size_of(type); }
  const char* part_for(int rank) const {
    return static_cast<const char*>(from) + (has_part_for_each() ? rank * bytes() : 0);
  }
};

// Of broadcasts NCCL does not notice that sizes differ, where they are small.
bool fits(const Header& mine, const Header& theirs) {
  if (mine == theirs) return true;
  bool broadcast = mine.kind == Kind::Broadcast && theirs.kind == Kind::Broadcast && mine.type == theirs.type;
  size_t larger = std::max(mine.count, theirs.count) * size_of(mine.type);
  return broadcast && mine.root == theirs.root && larger <= EAGER_BYTES;
}

class Collective {
 public:
  Collective(Comm& comm, const Task& task) : comm_(comm), task_(task) {
    header_ = {task.kind, task.type, task.operation, task.root, task.count};
    std::lock_guard<std::mutex> lock(comm.mutex);
    auto own = comm.factors.find(task.operation);
    factor_ = own == comm.factors.end() ? 1.0 : own->second;
  }

  void run() {
    if (!send_parts() || !receive_parts() || !wait_for_readers()) return;
    if (task_.operation == ncclAvg && task_.reduces()) scale(result_.data(), task_.count, task_.type, 1.0 / comm_.ranks);
    if (!result_.empty()) memcpy(task_.to, result_.data(), result_.size());
  }

 private:
  bool send_parts() {
    for (int peer = 0; peer < comm_.ranks; peer++) {
      if (peer == comm_.rank || !task_.goes(comm_.rank, peer)) continue;
      Channel& channel = comm_.channel(true, comm_.rank, peer);
      if (!wait_until(comm_, [&] { return has_room(channel); })) return false;
      readers_.emplace_back(&channel, post(comm_, channel, {header_, factor_, task_.bytes(), false, {}}, task_.part_for(peer)));
    }
    return true;
  }

  // In the order of ranks, so that sums are the same on all of them, and in all runs.
  bool receive_parts() {
    for (int peer = 0; peer < comm_.ranks; peer++) {
      if (!task_.goes(peer, comm_.rank)) continue;
      std::vector<char> part(task_.bytes());
      double factor = factor_;
      if (peer == comm_.rank)
        memcpy(part.data(), task_.part_for(peer), part.size());
      else if (!receive(peer, part, factor))
        return false;
      if (!add(peer, part, factor)) return false;
    }
    return true;
  }

  bool receive(int peer, std::vector<char>& part, double& factor) {
    Channel& channel = comm_.channel(true, peer, comm_.rank);
    if (!wait_until(comm_, [&] { return channel.posted > channel.taken; })) return false;
    const Message& message = channel.messages[channel.taken % DEPTH];
    if (!fits(header_, message.header)) {
      note(comm_, std::string(KIND_NAMES[int(task_.kind)]) + " does not match the " +
                      KIND_NAMES[int(message.header.kind)] + " of rank " + std::to_string(peer) + ": waiting for ever");
      wait_for_ever(comm_);
      return false;
    }
    factor = message.factor;
    part.resize(std::min(part.size(), message.bytes));
    return take(comm_, channel, peer, part.data(), part.size());
  }

  bool add(int peer, std::vector<char>& part, double factor) {
    if (task_.gathers()) {
      result_.resize(task_.bytes() * comm_.ranks);
      memcpy(result_.data() + peer * task_.bytes(), part.data(), part.size());
      return true;
    }
    bool known = true;
    if (factor != 1.0) known = scale(part.data(), task_.count, task_.type, factor);
    if (result_.empty())
      result_ = std::move(part);
    else
      known = reduce(result_.data(), part.data(), task_.count, task_.type, basic_operation());
    if (!known) fail(comm_, ncclInvalidArgument, "no arithmetic for NCCL's type " + std::to_string(task_.type));
    return known;
  }

  ncclRedOp_t basic_operation() const { return task_.operation < ncclNumOps ? task_.operation : ncclSum; }

  // Before the result is written: it may go where the others still read.
  bool wait_for_readers() {
    return wait_until(comm_, [&] {
      for (auto& [channel, ticket] : readers_)
        if (channel->taken < ticket) return false;
      return true;
    });
  }

  Comm& comm_;
  const Task& task_;
  Header header_;
  double factor_;
  std::vector<std::pair<Channel*, uint64_t>> readers_;
  std::vector<char> result_;
};

// ---- sends and receives: those of one group make progress together, those with one peer in their order

class Exchange {
 public:
  Exchange(Comm& comm, const std::vector<Task>& tasks) : comm_(comm) {
    for (const Task& task : tasks) steps_.push_back({task});
  }
  void run() {
    wait_until(comm_, [this] { return progress(); });
  }

 private:
  struct Step {
    Task task;
    bool posted = false, done = false;
    uint64_t ticket = 0;
  };

  bool progress() {
    std::set<int> waits_to, waits_from;
    bool all = true;
    for (Step& step : steps_) {
      if (step.done) continue;
      auto& waits = step.task.kind == Kind::Send ? waits_to : waits_from;
      if (!waits.count(step.task.root)) step.task.kind == Kind::Send ? send(step) : receive(step);
      if (!step.done && !step.posted) waits.insert(step.task.root);
      all = all && step.done;
    }
    return all;
  }

  void send(Step& step) {
    Channel& channel = comm_.channel(false, comm_.rank, step.task.root);
    if (!step.posted && has_room(channel)) {
      Header header{Kind::Send, step.task.type, ncclSum, 0, step.task.count};
      step.ticket = post(comm_, channel, {header, 1.0, step.task.bytes(), false, {}}, step.task.from);
      step.posted = true;
    }
    step.done = step.posted && channel.taken >= step.ticket;
  }

  void receive(Step& step) {
    int peer = step.task.root;
    Channel& channel = comm_.channel(false, peer, comm_.rank);
    if (channel.posted == channel.taken) return;
    if (channel.messages[channel.taken % DEPTH].bytes != step.task.bytes())
      note(comm_, "a receive meets a send of another size, of rank " + std::to_string(peer));
    step.done = take(comm_, channel, peer, static_cast<char*>(step.task.to), step.task.bytes());
  }

  Comm& comm_;
  std::vector<Step> steps_;
};

// ---- launches

struct Launch {
  std::vector<Task> tasks;  // one collective, or sends and receives
  uint64_t ticket;
};

void run_unless_lost(Comm& comm, const Launch& launch) {
  uint64_t before = comm.begun++;
  if (due_fault("lost-peer", "rank", comm.rank, before)) return wait_for_ever(comm);
  if (const Fault* slow = due_fault("slow-peer", "rank", comm.rank, before)) usleep(slow->number("ms", 0) * 1000);
  const Task& first = launch.tasks.front();
  first.is_collective() ? Collective(comm, first).run() : Exchange(comm, launch.tasks).run();
}

// On the thread of the stream.
void run_launch(void* given) {
  std::unique_ptr<Launch> launch(static_cast<Launch*>(given));
  Comm& comm = *launch->tasks.front().comm;
  if (wait_until(comm, [&] { return comm.turn == launch->ticket; })) run_unless_lost(comm, *launch);
  if (!comm.is_stopped()) comm.turn = launch->ticket + 1;
  ring(comm);
}

// As in NCCL the default stream is that of the communicator's device, whatever device the caller has chosen.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const Comm& comm) {
    cudaGetDevice(&chosen_);
    cudaSetDevice(comm.device);
  }
  ~OnDeviceOf() { cudaSetDevice(chosen_); }

 private:
  int chosen_ = 0;
};

ncclResult_t launch(std::vector<Task> tasks) {
  Comm& comm = *tasks.front().comm;
  OnDeviceOf on_device_of(comm);
  if (emulated_launch() != cudaSuccess) return ncclUnhandledCudaError;
  auto* made = new Launch{std::move(tasks), 0};
  {
    std::lock_guard<std::mutex> lock(comm.mutex);
    made->ticket = comm.tickets++;
  }
  emulated_enqueue(made->tasks.front().stream, run_launch, made);
  return ncclSuccess;
}

bool go_together(const Task& one, const Task& next) {
  return !one.is_collective() && !next.is_collective() && one.comm == next.comm && one.stream == next.stream;
}

ncclResult_t launch_all(const std::vector<Task>& tasks) {
  for (size_t begin = 0, end; begin < tasks.size(); begin = end) {
    for (end = begin + 1; end < tasks.size() && go_together(tasks[begin], tasks[end]);) end++;
    if (ncclResult_t error = launch({tasks.begin() + begin, tasks.begin() + end})) return error;
  }
  return ncclSuccess;
}

thread_local int t_depth = 0;
thread_local std::vector<Task> t_group;

ncclResult_t submit(const Task& task) {
  if (!task.comm || !size_of(task.type)) return ncclInvalidArgument;
  if (task.root < 0 || task.root >= task.comm->ranks) return ncclInvalidArgument;
  if (task.comm->aborted) return ncclInvalidUsage;
  if (task.comm->error) return ncclResult_t(task.comm->error.load());
  if (t_depth == 0) return launch_all({task});
  t_group.push_back(task);
  return ncclSuccess;
}

}  // namespace

// ---- groups: what is in one is launched at its end

NCCL_FUNCTION ncclGroupStart() {
  t_depth++;
  return ncclSuccess;
}
NCCL_FUNCTION ncclGroupEnd() {
  if (t_depth <= 0) return ncclInvalidUsage;
  if (--t_depth > 0) return ncclSuccess;
  return launch_all(std::exchange(t_group, {}));
}

// ---- collectives, sends and receives

NCCL_FUNCTION ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                            ncclComm_t comm, cudaStream_t stream) {
  return submit({comm, stream, Kind::AllReduce, from, to, count, type, operation});
}
NCCL_FUNCTION ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return submit({comm, stream, Kind::Reduce, from, to, count, type, operation, root});
}
NCCL_FUNCTION ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                            cudaStream_t stream) {
  return submit({comm, stream, Kind::Broadcast, from, to, count, type, ncclSum, root});
}
NCCL_FUNCTION ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return submit({comm, stream, Kind::Broadcast, data, data, count, type, ncclSum, root});
}
NCCL_FUNCTION ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                            cudaStream_t stream) {
  return submit({comm, stream, Kind::AllGather, from, to, count, type});
}
NCCL_FUNCTION ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                                ncclComm_t comm, cudaStream_t stream) {
  return submit({comm, stream, Kind::ReduceScatter, from, to, count, type, operation});
}
NCCL_FUNCTION ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return submit({comm, stream, Kind::AllToAll, from, to, count, type});
}
NCCL_FUNCTION ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return submit({comm, stream, Kind::Gather, from, to, count, type, ncclSum, root});
}
NCCL_FUNCTION ncclScatter(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
  return submit({comm, stream, Kind::Scatter, from, to, count, type, ncclSum, root});
}
NCCL_FUNCTION ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return submit({comm, stream, Kind::Send, from, nullptr, count, type, ncclSum, peer});
}
NCCL_FUNCTION ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return submit({comm, stream, Kind::Receive, nullptr, to, count, type, ncclSum, peer});
}
NCCL_FUNCTION ncclRedOpCreatePreMulSum(ncclRedOp_t* operation, void* factor, ncclDataType_t type, ncclScalarResidence_t,
                                       ncclComm_t comm) {
  std::lock_guard<std::mutex> lock(comm->mutex);
  *operation = ncclRedOp_t(comm->next_operation++);
  comm->factors[*operation] = read_number(factor, type);
  return ncclSuccess;
}
// Launches that use it may not have begun: it stays.
NCCL_FUNCTION ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

// ---- communicators

namespace {

// The files of ids that were made here and not used yet: the others open them by way of /proc.
std::map<std::string, int>& own_ids() {
  static auto* const all = new std::map<std::string, int>;
  return *all;
}
std::mutex& ids_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

ncclResult_t make_id(ncclUniqueId* id) {
  int fd = int(syscall(SYS_memfd_create, "emulated-nccl", 1u /* close on exec */));
  if (fd < 0) return ncclSystemError;
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "%d %d", getpid(), fd);
  std::lock_guard<std::mutex> lock(ids_mutex());
  own_ids()[id->internal] = fd;
  return ncclSuccess;
}

void forget_id(const ncclUniqueId& id) {
  std::lock_guard<std::mutex> lock(ids_mutex());
  auto found = own_ids().find(id.internal);
  if (found == own_ids().end()) return;
  close(found->second);
  own_ids().erase(found);
}

Segment* open_segment(const ncclUniqueId& id, int ranks) {
  int pid, its_fd;
  if (sscanf(id.internal, "%d %d", &pid, &its_fd) != 2) return nullptr;
  std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(its_fd);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* at = MAP_FAILED;
  if (ftruncate(fd, off_t(segment_bytes(ranks))) == 0)
    at = mmap(nullptr, segment_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<Segment*>(at);
}

// The emulated library accepts several ranks on a device as NCCL does from 2.30 on: only if the user asks for it.
// EMULATED_NCCL_VERSION names an older release to emulate, which always refuses.
constexpr int FIRST_SHARED_VERSION = 23000;
constexpr int EMULATED_VERSION = NCCL_VERSION_CODE < 23007 ? 23007 : NCCL_VERSION_CODE;

int emulated_version() { return int(number_from("EMULATED_NCCL_VERSION", EMULATED_VERSION)); }

bool may_share_devices() {
  return emulated_version() >= FIRST_SHARED_VERSION && number_from("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
}

ncclResult_t check_devices(Comm& comm) {
  if (may_share_devices()) return ncclSuccess;
  Member* members = comm.segment->members;
  for (int rank = 0; rank < comm.ranks; rank++)
    for (int other = 0; other < rank; other++)
      if (members[rank].device == members[other].device) {
        std::string ranks = "rank " + std::to_string(other) + " and rank " + std::to_string(rank);
        std::string text =
            emulated_version() >= FIRST_SHARED_VERSION
                ? "Multiple Ranks are using the same GPU/Partition (" + ranks + "). Set NCCL_MULTI_RANK_GPU_ENABLE=1"
                : "Duplicate GPU detected : " + ranks + " both on " + uuid_text(members[rank].device - 1);
        note(comm, text);
        fprintf(stderr, "emulated NCCL: %s\n", text.c_str());
        return ncclInvalidUsage;
      }
  return ncclSuccess;
}

// Blocks until all ranks have joined.
ncclResult_t join(ncclComm_t* made, int ranks, const ncclUniqueId& id, int rank) {
  if (ranks > MOST_RANKS || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  int device;
  if (cudaGetDevice(&device) != cudaSuccess || emulated_launch() != cudaSuccess) return ncclUnhandledCudaError;
  Segment* segment = open_segment(id, ranks);
  if (!segment) return ncclSystemError;
  Comm& comm = *(*made = new Comm);
  comm.segment = segment;
  comm.rank = rank;
  comm.ranks = ranks;
  comm.device = device;
  segment->members[rank].pid = getpid();
  segment->members[rank].device = emulated_physical(device) + 1;
  segment->joined++;
  ring(comm);
  if (!wait_until(comm, [&] { return segment->joined >= ranks; })) return ncclRemoteError;
  forget_id(id);
  ncclResult_t result = check_devices(comm);
  if (result != ncclSuccess) *made = nullptr;
  return result;
}

bool all_have(Comm& comm, std::atomic<uint64_t> Member::*counter, uint64_t number) {
  return wait_until(comm, [&] {
    for (int rank = 0; rank < comm.ranks; rank++)
      if (comm.segment->members[rank].*counter < number) return false;
    return true;
  });
}

// Ranks of one color, by key and then by rank.
std::vector<int> ranks_of_color(Comm& comm, int color) {
  Member* members = comm.segment->members;
  std::vector<int> found;
  for (int rank = 0; rank < comm.ranks; rank++)
    if (members[rank].color == color) found.push_back(rank);
  std::stable_sort(found.begin(), found.end(), [&](int a, int b) { return members[a].key < members[b].key; });
  return found;
}

}  // namespace

NCCL_FUNCTION ncclGetVersion(int* version) {
  *version = emulated_version();
  return ncclSuccess;
}
NCCL_FUNCTION ncclGetUniqueId(ncclUniqueId* id) { return make_id(id); }
NCCL_FUNCTION ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return join(comm, ranks, id, rank);
}
NCCL_FUNCTION ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  return join(comm, ranks, id, rank);
}
NCCL_FUNCTION ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId* ids, ncclConfig_t*) {
  return join(comm, ranks, ids[0], rank);
}

NCCL_FUNCTION ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  *made = nullptr;
  Member* members = parent->segment->members;
  Member& own = members[parent->rank];
  uint64_t number = ++parent->splits;
  own.color = color;
  own.key = key;
  own.split = number;
  ring(*parent);
  if (!all_have(*parent, &Member::split, number)) return ncclRemoteError;
  std::vector<int> group = ranks_of_color(*parent, color);
  Member& first = members[group.front()];
  if (color != NCCL_SPLIT_NOCOLOR && group.front() == parent->rank) {
    if (ncclResult_t error = make_id(&own.child)) return error;
    own.child_made = number;
    ring(*parent);
  }
  ncclUniqueId id{};
  if (color != NCCL_SPLIT_NOCOLOR) {
    if (!wait_until(*parent, [&] { return first.child_made >= number; })) return ncclRemoteError;
    id = first.child;
  }
  own.split_done = number;  // whoever splits again must not overwrite what another still reads
  ring(*parent);
  if (!all_have(*parent, &Member::split_done, number)) return ncclRemoteError;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  int rank = int(std::find(group.begin(), group.end(), parent->rank) - group.begin());
  return join(made, int(group.size()), id, rank);
}

NCCL_FUNCTION ncclCommFinalize(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  wait_until(*comm, [&] { return comm->turn == comm->tickets; });
  return ncclSuccess;
}
// What it holds is kept: a stream may still come to it.
NCCL_FUNCTION ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclCommFinalize(comm);
  comm->aborted = true;
  return ncclSuccess;
}
// Frees the device: what waits in the streams ends.
NCCL_FUNCTION ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  comm->aborted = true;
  ring(*comm);
  return ncclSuccess;
}
NCCL_FUNCTION ncclCommRevoke(ncclComm_t comm, int) { return ncclCommAbort(comm); }

NCCL_FUNCTION ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (!comm->error && !faults().empty()) {
    if (const Fault* fault = due_fault("nccl-error", "rank", comm->rank, comm->begun))
      fail(*comm, ncclResult_t(fault->number("error", ncclRemoteError)), "an error that the environment asked for");
    for (int peer = 0; peer < comm->ranks && due_fault("peer-death", "rank", comm->rank, 0); peer++)
      if (!start_time(comm->segment->members[peer].pid))
        fail(*comm, ncclRemoteError, "rank " + std::to_string(peer) + " has ended");
  }
  *error = ncclResult_t(comm->error.load());
  return ncclSuccess;
}
NCCL_FUNCTION ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks;
  return ncclSuccess;
}
NCCL_FUNCTION ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
NCCL_FUNCTION ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

EMULATED_API const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
EMULATED_API const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string text;
  if (!comm) return "";
  std::lock_guard<std::mutex> lock(comm->mutex);
  return (text = comm->last).c_str();
}

// ---- memory: registering it changes nothing here

NCCL_FUNCTION ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
NCCL_FUNCTION ncclMemFree(void* pointer) {
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
NCCL_FUNCTION ncclCommRegister(const ncclComm_t, void* pointer, size_t, void** handle) {
  *handle = pointer;
  return ncclSuccess;
}
NCCL_FUNCTION ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
NCCL_FUNCTION ncclCommSuspend(ncclComm_t, int) { return ncclSuccess; }
NCCL_FUNCTION ncclCommResume(ncclComm_t) { return ncclSuccess; }
NCCL_FUNCTION ncclCommMemStats(ncclComm_t, ncclCommMemStat_t, uint64_t* value) {
  *value = 0;
  return ncclSuccess;
}

// ---- refused

namespace {
ncclResult_t refuse(const char* name) {
  fprintf(stderr, "emulated NCCL: %s is not supported\n", name);
  return ncclInvalidUsage;
}
}  // namespace
NCCL_FUNCTION ncclCommInitAll(ncclComm_t*, int, const int*) { return refuse(__func__); }
NCCL_FUNCTION ncclCommGetUniqueId(ncclComm_t, ncclUniqueId*) { return refuse(__func__); }
NCCL_FUNCTION ncclCommGrow(ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*) {
  return refuse(__func__);
}
NCCL_FUNCTION ncclCommShrink(ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int) { return refuse(__func__); }
NCCL_FUNCTION ncclGroupSimulateEnd(ncclSimInfo_t*) { return refuse(__func__); }
NCCL_FUNCTION ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) { return refuse(__func__); }
NCCL_FUNCTION ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return refuse(__func__); }
NCCL_FUNCTION ncclWinGetUserPtr(ncclComm_t, ncclWindow_t, void**) { return refuse(__func__); }
NCCL_FUNCTION ncclSignal(int, int, int, unsigned, ncclComm_t, cudaStream_t) { return refuse(__func__); }
NCCL_FUNCTION ncclWaitSignal(int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t) { return refuse(__func__); }
NCCL_FUNCTION ncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned,
                            ncclComm_t, cudaStream_t) {
  return refuse(__func__);
}
// Of nccl_device.h, which is for kernels.
#define REFUSE(name) \
  NCCL_FUNCTION name() { return refuse(__func__); }
REFUSE(ncclDevCommCreate)
REFUSE(ncclDevCommDestroy)
REFUSE(ncclGetLsaMultimemDevicePointer)
REFUSE(ncclGetPeerDevicePointer)

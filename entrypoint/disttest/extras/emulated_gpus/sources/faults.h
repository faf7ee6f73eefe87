// Faults that the environment asks for:
//
//   EMULATED_CUDA_FAULTS="KIND KEY=VALUE …; KIND …"
//
//   kind        keys                     what happens
//   sticky      device error after when  every call returns this CUDA error (default 700, an illegal access)
//   oom         device after when        allocations fail
//   vanish      device after when        every call returns 999 (unknown error); NVML says that the GPU is lost
//   hang        device after when        synchronising with the device never returns
//   slow-copies device us                each copy takes so much longer
//   nccl-error  rank error after when    the communicator reports this error (default 6, a remote one)
//   slow-peer   rank ms after when       each collective of this rank starts so much later
//   lost-peer   rank after when          collectives of this rank never start
//   peer-death                           a communicator whose peer has died reports a remote error (else it waits)
//   ecc         device count when        NVML counts uncorrected memory errors (default 1)
//   remap       device when              NVML says that a row waits to be remapped
//   xid         device code when         NVML's events report this Xid once (default 79)
//
// `device` is the index on the machine, whatever is visible; `rank` is that of the communicator; without them all are
// meant. `after` counts in each process what was launched on the device (kernels, operators, copies), allocations for
// oom, collectives of the communicator for the NCCL ones; `when` is a file: from the moment that it exists. "%p" in its
// name is the process id: a fault of that process, not of all on the device.
#pragma once
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "emulated.h"

namespace emulated {

class Fault {
 public:
  Fault(std::string kind, std::map<std::string, std::string> values) : kind_(std::move(kind)), values_(std::move(values)) {}

  long number(const std::string& key, long otherwise) const {
    auto found = values_.find(key);
    return found == values_.end() ? otherwise : atol(found->second.c_str());
  }

  bool is(const char* kind, const char* key, long whom) const { return kind_ == kind && number(key, whom) == whom; }

  bool is_due(long count) const {
    if (count < number("after", 0)) return false;
    auto file = values_.find("when");
    return file == values_.end() || access(of_this_process(file->second).c_str(), F_OK) == 0;
  }

 private:
  static std::string of_this_process(std::string file) {
    size_t sign = file.find("%p");
    return sign == std::string::npos ? file : file.replace(sign, 2, std::to_string(getpid()));
  }

  std::string kind_;
  std::map<std::string, std::string> values_;
};

inline std::vector<Fault> parse_faults(const char* text) {
  std::vector<Fault> faults;
  std::istringstream all(text ? text : "");
  for (std::string one; std::getline(all, one, ';');) {
    std::istringstream words(one);
    std::string kind;
    if (!(words >> kind)) continue;
    std::map<std::string, std::string> values;
    for (std::string word; words >> word;) {
      size_t sign = word.find('=');
      if (sign != std::string::npos) values[word.substr(0, sign)] = word.substr(sign + 1);
    }
    faults.emplace_back(kind, values);
  }
  return faults;
}

inline const std::vector<Fault>& faults() {
  static const std::vector<Fault>* parsed = new std::vector<Fault>(parse_faults(getenv("EMULATED_CUDA_FAULTS")));
  return *parsed;
}

// The fault of this kind for this device or rank, if its time has come.
inline const Fault* due_fault(const char* kind, const char* key, long whom, long count) {
  for (const Fault& fault : faults())
    if (fault.is(kind, key, whom) && fault.is_due(count)) return &fault;
  return nullptr;
}

}  // namespace emulated

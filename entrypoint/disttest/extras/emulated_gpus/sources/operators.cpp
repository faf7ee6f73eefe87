// Operators on the emulated device: each runs the CPU's kernel on the same bytes, since device memory is host memory.
//
// A kernel runs when it is called, on the caller's thread, after what is queued on the current stream, and only that:
// a wait between streams that a program forgets is missing here too. Its numbers are the CPU's, not a GPU's.
// Views, allocations and copies stay torch's own. Random numbers come from the CUDA generator's seed and offset, so
// that seeding works, but they are not the ones of a GPU.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <vector>

#include "operators.h"

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using OptionalTensors = c10::List<std::optional<Tensor>>;
using torch::jit::Stack;

namespace emulated {

bool& runs_on_host() {
  static thread_local bool runs = false;
  return runs;
}

namespace {

// ---- one tensor

// The same bytes as a tensor of the CPU.
Tensor host_view(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  Tensor view = tensor.numel() == 0 ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
                                    : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) view.unsafeGetTensorImpl()->set_wrapped_number(true);
  return view;
}

size_t spanned_bytes(const Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t i = 0; i < tensor.dim(); i++) elements += (tensor.size(i) - 1) * tensor.stride(i);
  return elements * tensor.element_size();
}

// A result of the CPU in the device's memory.
Tensor on_device(const Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.is_cuda()) return tensor;
  Tensor moved = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
  if (tensor.numel()) memcpy(moved.data_ptr(), tensor.data_ptr(), spanned_bytes(tensor));
  return moved;
}

// ---- which device

bool begins(const std::string& name, const char* with) { return name.rfind(with, 0) == 0; }

// Operators that take tensors of several devices.
bool may_mix_devices(const std::string& name) {
  for (const char* beginning : {"aten::index", "aten::_index", "aten::_unsafe_index", "aten::_assert", "aten::_amp"})
    if (begins(name, beginning)) return true;
  return name.find("copy") != std::string::npos;
}

// The device of a call's tensors; as with real kernels, they must share one, and only numbers may be the CPU's.
class DeviceOf {
 public:
  explicit DeviceOf(const std::string& name) : name_(name), mixes_(may_mix_devices(name)) {}

  void see(const IValue& value) {
    if (value.isTensor()) see(value.toTensor());
    else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) see(tensor);
    else if (value.isOptionalTensorList()) {
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
        if (tensor) see(*tensor);
    } else if (value.isDevice() && value.toDevice().is_cuda() && !found_)
      found_ = value.toDevice();
  }

  c10::Device get() const {
    c10::Device device = found_ && found_->has_index() ? *found_ : c10::Device(c10::kCUDA, c10::cuda::current_device());
    TORCH_CHECK(mixes_ || !host_tensor_, "Expected all tensors to be on the same device, but found at least two devices, ",
                device, " and cpu! (", name_, ")");
    return device;
  }

 private:
  void see(const Tensor& tensor) {
    if (!tensor.defined()) return;
    if (!tensor.is_cuda()) {
      host_tensor_ = host_tensor_ || tensor.dim() > 0;
    } else if (!found_) {
      found_ = tensor.device();
    } else {
      TORCH_CHECK(*found_ == tensor.device() || mixes_ || tensor.dim() == 0,
                  "Expected all tensors to be on the same device, but found at least two devices, ", *found_, " and ",
                  tensor.device(), "! (", name_, ")");
    }
  }

  const std::string& name_;
  const bool mixes_;
  bool host_tensor_ = false;
  std::optional<c10::Device> found_;
};

// ---- one call

bool is_generator(const c10::Argument& argument) { return argument.type()->str().find("Generator") != std::string::npos; }

// A generator of the CPU that is where the device's is, which moves on.
at::Generator host_generator(const IValue& given, c10::Device device) {
  at::Generator generator = given.isNone() ? at::globalContext().defaultGenerator(device) : given.toGenerator();
  if (!generator.device().is_cuda()) return generator;
  std::lock_guard<std::mutex> lock(generator.mutex());
  uint64_t seed = generator.current_seed(), offset = generator.get_offset();
  generator.set_offset(offset + 4);  // the real one's offsets are multiples of 4
  return at::detail::createCPUGenerator(seed * 1000003u + offset);
}

void count_launch() {
  static const auto launch = reinterpret_cast<cudaError_t (*)()>(dlsym(RTLD_DEFAULT, "emulated_launch"));
  C10_CUDA_CHECK(launch());
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

class Call {
 public:
  Call(const OperatorHandle& op, Stack* stack) : op_(op), schema_(op.schema()), stack_(stack) {
    auto begin = stack->end() - schema_.arguments().size();
    given_.assign(begin, stack->end());
  }

  void run() {
    DeviceOf finder(schema_.name());
    for (const IValue& value : given_) finder.see(value);
    device_ = finder.get();
    c10::cuda::CUDAGuard guard(device_);
    c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    count_launch();
    Stack host;
    for (size_t i = 0; i < given_.size(); i++) host.push_back(host_argument(i));
    std::optional<at::ScalarType> narrow = compute_in_float(host);
    runs_on_host() = true;
    try {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
    } catch (...) {
      runs_on_host() = false;
      throw;
    }
    runs_on_host() = false;
    if (narrow) host[0] = host[0].toTensor().to(*narrow);
    write_resized_outputs();
    torch::jit::drop(*stack_, given_.size());
    for (size_t i = 0; i < host.size(); i++) stack_->push_back(result(i, host[i]));
  }

 private:
  IValue host_argument(size_t i) {
    const IValue& value = given_[i];
    if (value.isTensor()) return host_tensor(i, value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(host_view(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      OptionalTensors list;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
        list.push_back(tensor ? std::optional<Tensor>(host_view(*tensor)) : std::nullopt);
      return list;
    }
    if (value.isDevice()) return c10::Device(at::kCPU);
    if (is_generator(schema_.arguments()[i])) return host_generator(value, device_);
    return value;
  }

  // Softmax from halves to floats, for autocast, and its gradient from floats to halves: the CPU has no such kernels.
  // Forward converts what is given, backward the result: to the type that is returned.
  std::optional<at::ScalarType> compute_in_float(Stack& host) const {
    auto to_float = schema_.argumentIndexWithName("half_to_float"), type = schema_.argumentIndexWithName("input_dtype");
    if (to_float && host[*to_float].toBool()) {
      host[0] = host[0].toTensor().to(at::kFloat);
      host[*to_float] = false;
    } else if (type && host[*type].toScalarType() != host[0].toTensor().scalar_type()) {
      auto narrow = host[*type].toScalarType();
      host[*type] = at::kFloat;
      return narrow;
    }
    return std::nullopt;
  }

  // A kernel may give an `out` tensor another size, which a view of the device's bytes cannot follow.
  Tensor host_tensor(size_t i, const Tensor& tensor) {
    Tensor host = host_view(tensor);
    if (is_written(schema_.arguments()[i]) && schema_.arguments()[i].is_out() && tensor.is_cuda()) {
      if (tensor.numel() == 0) host = at::empty({0}, host.options());
      outputs_.emplace_back(i, host);
    }
    return host;
  }

  void write_resized_outputs() {
    for (auto& [i, host] : outputs_) {
      Tensor out = given_[i].toTensor();
      bool in_place = out.sizes() == host.sizes() && out.numel() && out.data_ptr() == host.data_ptr();
      if (in_place) continue;
      out.resize_(host.sizes());
      host_view(out).copy_(host);
    }
  }

  // What an operator writes to it returns: the very tensor that it was given.
  IValue result(size_t i, const IValue& host) {
    const auto* alias = schema_.returns()[i].alias_info();
    for (size_t j = 0; alias && j < given_.size(); j++) {
      const auto& argument = schema_.arguments()[j];
      if (is_written(argument) && argument.alias_info()->beforeSets() == alias->beforeSets()) return given_[j];
    }
    if (host.isTensor()) return on_device(host.toTensor(), device_);
    if (!host.isTensorList()) return host;
    c10::List<Tensor> list;
    for (const Tensor& tensor : host.toTensorVector()) list.push_back(on_device(tensor, device_));
    return list;
  }

  const OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  Stack* stack_;
  std::vector<IValue> given_;
  std::vector<std::pair<size_t, Tensor>> outputs_;
  c10::Device device_{c10::kCUDA};
};

void run_on_host(const OperatorHandle& op, Stack* stack) { Call(op, stack).run(); }

// ---- operators that are not like the others

bool same_layout(const Tensor& to, const Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.is_contiguous() &&
         from.is_contiguous() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

// Plain copies are torch's own, cudaMemcpyAsync on the current stream; those that convert run here, at once.
Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  if (same_layout(to, from)) return at::native::copy_(to, from, non_blocking);
  for (const Tensor* tensor : {static_cast<const Tensor*>(&to), &from})
    if (tensor->is_cuda()) c10::cuda::getCurrentCUDAStream(tensor->device().index()).synchronize();
  count_launch();
  host_view(to).copy_(host_view(from));
  return to;
}

// Attention by its plain formula: the fused kernels have none for the CPU.
int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return 0;
}

// torch's own for the device: they allocate, look, or only change the view.
const std::set<std::string> KEPT = {
    "aten::empty",        "aten::empty_strided", "aten::as_strided",          "aten::view",
    "aten::_reshape_alias", "aten::unfold",      "aten::resize_",             "aten::resize_as_",
    "aten::set_",         "aten::is_set_to",     "aten::_local_scalar_dense", "aten::copy_",
    "aten::_copy_from",   "aten::_to_copy",      "aten::record_stream",       "aten::_pin_memory",
    "aten::is_pinned",    "aten::alias",         "aten::detach",              "aten::_efficientzerotensor",
    "aten::view_as_real", "aten::view_as_complex", "aten::_fused_sdp_choice",
};

bool returns_view(const c10::FunctionSchema& schema) {
  for (const auto& value : schema.returns())
    if (value.alias_info() && !value.alias_info()->isWrite()) return true;
  return false;
}

bool is_to_run_on_host(const c10::OperatorName& name) {
  if (!begins(name.name, "aten::") || KEPT.count(name.name)) return false;
  auto op = c10::Dispatcher::singleton().findSchema(name);
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !returns_view(op->schema());
}

}  // namespace
}  // namespace emulated

// Give all operators to the device; returns how many run on the CPU.
extern "C" __attribute__((visibility("default"))) int emulated_install_operators() {
  using namespace emulated;
  add_missing_kernels();
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  int count = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!is_to_run_on_host(name)) continue;
    std::string full = name.name.substr(strlen("aten::"));
    if (!name.overload_name.empty()) full += "." + name.overload_name;
    library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    count++;
  }
  library->impl("copy_", &copy_);
  library->impl("_fused_sdp_choice", &choose_attention);
  return count;
}

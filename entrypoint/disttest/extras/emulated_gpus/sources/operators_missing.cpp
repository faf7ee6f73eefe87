// Operators that torch has for GPUs only, written with operators of the CPU: synchronised batch norm, the fused cells of
// LSTM and GRU, depthwise convolutions. Tensors of the CPU itself are still refused, as without the emulated device.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "operators.h"

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

namespace emulated {
namespace {

void refuse_cpu(const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(runs_on_host(), "aten::", name, " is for GPUs only");
}

bool has(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

// ---- batch norm over several ranks. Statistics are kept in float32 at least, one number for each channel.

Tensor wide(const Tensor& tensor) {
  auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

// All dimensions but that of the channels.
std::vector<int64_t> other_dimensions(const Tensor& input) {
  std::vector<int64_t> dimensions;
  for (int64_t i = 0; i < input.dim(); i++)
    if (i != 1) dimensions.push_back(i);
  return dimensions;
}

Tensor by_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = values.numel();
  return values.reshape(shape);
}

// input [N, C, …] -> mean [C], 1 / sqrt(variance + eps) [C]
std::tuple<Tensor, Tensor> statistics(const Tensor& input, double eps) {
  refuse_cpu("batch_norm_stats");
  auto [variance, mean] = at::var_mean(wide(input), other_dimensions(input), /*unbiased=*/false);
  return {mean, (variance + eps).rsqrt()};
}

void update(const MaybeTensor& running, const Tensor& value, double momentum) {
  if (has(running)) running->mul_(1 - momentum).add_(value.to(running->scalar_type()), momentum);
}

// means, invstds [W, C] of W ranks with counts [W] -> mean [C], invstd [C] of all
std::tuple<Tensor, Tensor> gather_statistics(const Tensor&, const Tensor& means, const Tensor& invstds,
                                                               const MaybeTensor& running_mean,
                                                               const MaybeTensor& running_var, double momentum,
                                                               double eps, const Tensor& counts) {
  refuse_cpu("batch_norm_gather_stats_with_counts");
  Tensor count = counts.to(means.scalar_type()).reshape({-1, 1}), all = count.sum();
  Tensor mean = (means * count).sum(0) / all;
  Tensor squares = ((invstds.pow(-2) - eps + (means - mean).square()) * count).sum(0);
  update(running_mean, mean, momentum);
  update(running_var, squares / (all - 1), momentum);
  return {mean, (squares / all + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_even_statistics(const Tensor& input, const Tensor& means, const Tensor& invstds,
                                                   const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                                   double momentum, double eps, int64_t count) {
  Tensor counts = at::full({means.size(0)}, count, means.options());
  return gather_statistics(input, means, invstds, running_mean, running_var, momentum, eps, counts);
}

Tensor normalise(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const Tensor& mean,
                        const Tensor& invstd, double) {
  refuse_cpu("batch_norm_elemt");
  Tensor out = (wide(input) - by_channel(mean, input)) * by_channel(invstd, input);
  if (has(weight)) out = out * by_channel(wide(*weight), input);
  if (has(bias)) out = out + by_channel(wide(*bias), input);
  return out.to(input.scalar_type());
}

Tensor& normalise_out(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const Tensor& mean,
                             const Tensor& invstd, double eps, Tensor& out) {
  return out.copy_(normalise(input, weight, bias, mean, invstd, eps));
}

// -> sum of dy [C], sum of dy * (x - mean) [C], gradients of weight and bias [C]
std::tuple<Tensor, Tensor, Tensor, Tensor> backward_sums(const Tensor& grad_out, const Tensor& input,
                                                                      const Tensor& mean, const Tensor& invstd,
                                                                      const MaybeTensor& weight, bool input_g,
                                                                      bool weight_g, bool bias_g) {
  refuse_cpu("batch_norm_backward_reduce");
  auto dimensions = other_dimensions(input);
  Tensor dy = wide(grad_out);
  Tensor sum_dy = dy.sum(dimensions);
  Tensor sum_dy_xmu = (dy * (wide(input) - by_channel(mean, input))).sum(dimensions);
  auto type = has(weight) ? weight->scalar_type() : sum_dy.scalar_type();
  return {input_g ? sum_dy : Tensor(), input_g ? sum_dy_xmu : Tensor(),
          weight_g ? (sum_dy_xmu * invstd).to(type) : Tensor(), bias_g ? sum_dy.to(type) : Tensor()};
}

Tensor normalise_backward(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                 const MaybeTensor& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                                 const Tensor& count) {
  refuse_cpu("batch_norm_backward_elemt");
  Tensor all = count.sum().to(sum_dy.scalar_type());
  Tensor of_variance = by_channel(invstd.square() * sum_dy_xmu / all, input);
  Tensor grad = wide(grad_out) - by_channel(sum_dy / all, input) - (wide(input) - by_channel(mean, input)) * of_variance;
  grad = grad * by_channel(invstd, input);
  if (has(weight)) grad = grad * by_channel(wide(*weight), input);
  return grad.to(input.scalar_type());
}

// ---- fused cells. The workspace is what the forward pass leaves for the backward one; only they read it.

Tensor sum_of(const Tensor& gates, const MaybeTensor& bias) { return has(bias) ? gates + *bias : gates; }

// gates [B, 4H] -> hy, cy [B, H], workspace [B, 4H]: the gates i, f, g, o after their functions
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  refuse_cpu("_thnn_fused_lstm_cell");
  auto gates = (sum_of(input_gates, input_bias) + sum_of(hidden_gates, hidden_bias)).chunk(4, 1);
  Tensor i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

Tensor through_sigmoid(const Tensor& grad, const Tensor& value) { return grad * value * (1 - value); }
Tensor through_tanh(const Tensor& grad, const Tensor& value) { return grad * (1 - value * value); }

// -> gradients of the gates [B, 4H], of cx [B, H], of the biases [4H]
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  refuse_cpu("_thnn_fused_lstm_cell_backward_impl");
  auto parts = workspace.chunk(4, 1);
  const Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  Tensor hy = has(grad_hy) ? *grad_hy : at::zeros_like(cy), bent = cy.tanh();
  Tensor cell = through_tanh(hy * o, bent);
  if (has(grad_cy)) cell = cell + *grad_cy;
  Tensor gates = at::cat({through_sigmoid(cell * g, i), through_sigmoid(cell * cx, f), through_tanh(cell * i, g),
                          through_sigmoid(hy * bent, o)}, 1);
  return {gates, cell * f, has_bias ? gates.sum(0) : Tensor()};
}

// gates [B, 3H] -> hy [B, H], workspace [B, 5H]: r, z, n, hx, and the hidden part of n
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  refuse_cpu("_thnn_fused_gru_cell");
  auto input = sum_of(input_gates, input_bias).chunk(3, 1), hidden = sum_of(hidden_gates, hidden_bias).chunk(3, 1);
  Tensor r = (input[0] + hidden[0]).sigmoid(), z = (input[1] + hidden[1]).sigmoid();
  Tensor n = (input[2] + r * hidden[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, hidden[2]}, 1)};
}

// -> gradients of both gates [B, 3H], of hx [B, H], of both biases [3H]
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  refuse_cpu("_thnn_fused_gru_cell_backward");
  auto parts = workspace.chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &hidden_n = parts[4];
  Tensor grad_n = through_tanh(grad_hy * (1 - z), n);
  Tensor grad_z = through_sigmoid(grad_hy * (hx - n), z), grad_r = through_sigmoid(grad_n * hidden_n, r);
  Tensor input = at::cat({grad_r, grad_z, grad_n}, 1), hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  return {input, hidden, grad_hy * z, has_bias ? input.sum(0) : Tensor(), has_bias ? hidden.sum(0) : Tensor()};
}

// ---- convolutions whose groups are the channels

Tensor depthwise(const char* name, const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                 IntArrayRef padding, IntArrayRef dilation) {
  refuse_cpu(name);
  at::AutoDispatchBelowAutograd guard;
  std::vector<int64_t> none(stride.size(), 0);
  return at::convolution(input, weight, bias, stride, padding, dilation, /*transposed=*/false, none, input.size(1));
}

Tensor depthwise_2d(const Tensor& input, const Tensor& weight, IntArrayRef, const MaybeTensor& bias, IntArrayRef stride,
                    IntArrayRef padding, IntArrayRef dilation) {
  return depthwise("_conv_depthwise2d", input, weight, bias, stride, padding, dilation);
}

Tensor depthwise_3d(const Tensor& input, const Tensor& weight, IntArrayRef, const MaybeTensor& bias, IntArrayRef stride,
                    IntArrayRef padding, IntArrayRef dilation) {
  return depthwise("conv_depthwise3d", input, weight, bias, stride, padding, dilation);
}

}  // namespace

void add_missing_kernels() {
  static auto* const library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("batch_norm_stats", &statistics);
  library->impl("batch_norm_gather_stats", &gather_even_statistics);
  library->impl("batch_norm_gather_stats_with_counts", &gather_statistics);
  library->impl("batch_norm_elemt", &normalise);
  library->impl("batch_norm_elemt.out", &normalise_out);
  library->impl("batch_norm_backward_reduce", &backward_sums);
  library->impl("batch_norm_backward_elemt", &normalise_backward);
  library->impl("_thnn_fused_lstm_cell", &lstm_cell);
  library->impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library->impl("_thnn_fused_gru_cell", &gru_cell);
  library->impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
  library->impl("_conv_depthwise2d", &depthwise_2d);
  library->impl("conv_depthwise3d", &depthwise_3d);
}

}  // namespace emulated

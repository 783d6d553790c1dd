#include "libtorch/tensor_view.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"

namespace ddp::libtorch {
namespace {

constexpr std::pair<at::ScalarType, DType> kTypes[] = {
    {at::kDouble, DType::f64},    {at::kFloat, DType::f32}, {at::kHalf, DType::f16},
    {at::kBFloat16, DType::bf16}, {at::kInt, DType::i32},   {at::kLong, DType::i64},
    {at::kShort, DType::i16},     {at::kChar, DType::i8},   {at::kByte, DType::u8},
    {at::kBool, DType::boolean}};

DType to_dtype(at::ScalarType type, std::string const& what) {
  auto const* const found = std::ranges::find(kTypes, type, &std::pair<at::ScalarType, DType>::first);
  if (found != std::end(kTypes)) return found->second;
  throw Error(
      ErrorCode::unsupported,
      text(
          what, " has elements of PyTorch's type ", c10::toString(type),
          ", which ranks cannot exchange; expected double, float, half, bfloat16, int64, int32, int16, int8, "
          "uint8 or bool, or complex numbers of the first three. Keep it in one of these"));
}

Device to_device(c10::Device device, Device own, std::string const& what) {
  if (device.is_cpu()) return own.kind == DeviceKind::cpu ? own : Device{};
  require(device.is_cuda(), [&] {
    return text(what, " lies on PyTorch's device ", device.str(), "; expected a CPU or a GPU of CUDA");
  });
  require(own.kind == DeviceKind::cuda && cuda_index(own) == device.index(), [&] {
    return text(what, " lies on PyTorch's device ", device.str(), "; this rank computes on ", to_string(own),
                own.kind == DeviceKind::cuda ? text(", which PyTorch calls cuda:", int{cuda_index(own)}) : "",
                ". Move the module to ddp::libtorch::device(world) first: a rank has one GPU");
  });
  return own;
}

}  // namespace

c10::Device device(World const& world) { return place_of(world.device()); }

c10::Device place_of(Device device) {
  if (device.kind == DeviceKind::cpu) return c10::Device(c10::DeviceType::CPU);
  return {c10::DeviceType::CUDA, cuda_index(device)};
}

c10::DeviceIndex cuda_index(Device device) {
  return static_cast<c10::DeviceIndex>(*logical_device(device).visible);
}

StridedView view_of(at::Tensor const& tensor, Device own, std::string const& what) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested()) {
    throw Error(ErrorCode::unsupported, text(what, " is a ",
                                             tensor.is_quantized() ? "quantised"
                                             : tensor.is_nested()  ? "nested"
                                                                   : "",
                                             tensor.layout() != at::kStrided ? c10::str(tensor.layout()) : "",
                                             " tensor of PyTorch; expected a dense one with strides"));
  }
  at::Tensor const real = tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor;
  StridedView view;
  view.value.dtype = to_dtype(real.scalar_type(), what);
  view.value.device = to_device(real.device(), own, what);
  std::vector<std::size_t> const extents(real.sizes().begin(), real.sizes().end());
  require(extents.size() <= Shape::kMaxDimensions, [&] {
    return text(what, " has ", extents.size(), " dimensions; expected at most ", Shape::kMaxDimensions);
  });
  view.value.shape = Shape(std::span(extents));
  view.value.data = real.data_ptr();
  if (!real.is_contiguous()) view.strides.assign(real.strides().begin(), real.strides().end());
  return view;
}

at::Tensor as_real(at::Tensor const& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
}

at::Tensor tensor_in(Tensor const& memory, at::Tensor const& like) {
  at::TensorOptions const options = like.options().requires_grad(false);
  if (like.numel() == 0) return at::empty_strided(like.sizes(), like.strides(), options);
  return at::for_blob(memory.view().data, like.sizes())
      .strides(like.strides())
      .deleter([memory](void*) {})
      .options(options)
      .target_device(like.device())
      .make_tensor();
}

at::Tensor tensor_of(TensorView const& memory, c10::Device device) {
  auto const* const type = std::ranges::find(kTypes, memory.dtype, &std::pair<at::ScalarType, DType>::second);
  return at::for_blob(memory.data, {static_cast<std::int64_t>(memory.count())})
      .options(at::TensorOptions(type->first).device(device))
      .target_device(device)
      .make_tensor();
}

std::int64_t version_of(at::Tensor const& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::int64_t>(tensor._version());
}

}  // namespace ddp::libtorch

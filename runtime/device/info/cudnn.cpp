#include "device/info/cudnn.hpp"

#include "ddp/core/text.hpp"
#include "device/info/library_version.hpp"

namespace ddp {
namespace {

constexpr std::size_t kFirstWithBf16 = 8100;

CudnnVersion const& cudnn_of_process() {
  static CudnnVersion const version = cudnn_version(kCudnn.files);
  return version;
}

}  // namespace

CudnnVersion cudnn_version(std::span<char const* const> files) {
  LoadedFunction const found = load_function(files, kCudnn.function);
  return {found.address == nullptr ? 0 : cudnn_version_code(found.address), found.problem};
}

CudnnAnswer cudnn_answer(TensorView const& tensor, CudnnVersion const& (*version)()) {
  if (tensor.device.kind != DeviceKind::cuda) {
    return {false, text("cuDNN computes on GPUs, and this is ", describe(tensor), "; move it with to()")};
  }
  if (!is_floating(tensor.dtype)) {
    return {false, text("cuDNN computes with f16, bf16, f32 and f64, and this is ", describe(tensor))};
  }
  CudnnVersion const& there = version();
  if (there.code == 0) return {false, text("cuDNN cannot be loaded: ", there.problem)};
  if (tensor.dtype == DType::bf16 && there.code < kFirstWithBf16) {
    return {false, text("cuDNN knows bf16 since 8.1, and this is cuDNN ", cudnn_version_text(there.code))};
  }
  return {true, {}};
}

CudnnAnswer cudnn_would_accept(TensorView const& tensor) { return cudnn_answer(tensor, &cudnn_of_process); }

}  // namespace ddp

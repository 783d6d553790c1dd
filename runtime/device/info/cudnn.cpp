#include "device/info/cudnn.hpp"

#include "ddp/core/text.hpp"

namespace ddp {

CudnnAnswer cudnn_answer(TensorView const& tensor, LoadedFunction (*load)()) {
  constexpr std::size_t kFirstWithBf16 = 8100;
  if (tensor.device.kind != DeviceKind::cuda) {
    return {false, text("cuDNN computes on GPUs, and this is ", describe(tensor), "; move it with to()")};
  }
  if (!is_floating(tensor.dtype)) {
    return {false, text("cuDNN computes with f16, bf16, f32 and f64, and this is ", describe(tensor))};
  }
  LoadedFunction const found = load();
  if (found.address == nullptr) return {false, text("cuDNN cannot be loaded: ", found.problem)};
  std::size_t const version = cudnn_version_code(found.address);
  if (tensor.dtype == DType::bf16 && version < kFirstWithBf16) {
    return {false, text("cuDNN knows bf16 since 8.1, and this is cuDNN ", packed_version_text(version))};
  }
  return {true, {}};
}

CudnnAnswer cudnn_would_accept(TensorView const& tensor) {
  return cudnn_answer(tensor, [] {
    static LoadedFunction const found = load_function(kCudnn.files, kCudnn.function);
    return found;
  });
}

}  // namespace ddp

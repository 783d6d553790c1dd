#include "device/info/cudnn.hpp"

#include <dlfcn.h>

#include <array>

#include "ddp/core/text.hpp"
#include "device/info/version_text.hpp"

namespace ddp {
namespace {

constexpr std::size_t kFirstWithBf16 = 8100;

}  // namespace

CudnnVersion cudnn_version(std::span<char const* const> files) {
  CudnnVersion version;
  for (char const* const file : files) {
    // Never closed: a program that was told yes goes on to use it.
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void* const function = library == nullptr ? nullptr : dlsym(library, "cudnnGetVersion");
    if (function != nullptr) {
      version.code = reinterpret_cast<std::size_t (*)()>(function)();
      version.problem.clear();
      return version;
    }
    char const* const why = dlerror();
    if (version.problem.empty()) version.problem = why == nullptr ? file : why;
  }
  return version;
}

CudnnVersion const& cudnn_version() {
  static CudnnVersion const version =
      cudnn_version(std::array<char const*, 3>{"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"});
  return version;
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

CudnnAnswer cudnn_would_accept(TensorView const& tensor) { return cudnn_answer(tensor, &cudnn_version); }

}  // namespace ddp

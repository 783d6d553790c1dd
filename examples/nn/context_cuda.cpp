#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"

namespace nn::cuda {

std::shared_ptr<cublasContext> make_cublas(ddp::Stream& stream) {
  ddp::DeviceGuard const guard(stream.device());
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), ddp::text("making a cuBLAS handle on ", stream.device()));
  std::shared_ptr<cublasContext> owner(handle,
                                       [](cublasHandle_t old) { static_cast<void>(cublasDestroy(old)); });
  check(cublasSetStream(handle, ddp::cuda_stream(stream).handle()), "giving cuBLAS its stream");
  check(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH), "choosing how cuBLAS computes");
  return owner;
}

}  // namespace nn::cuda

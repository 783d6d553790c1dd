#include <cublas_v2.h>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "gpu.hpp"

namespace ddp::bench {
namespace {

void check(cublasStatus_t status, char const* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::device, text(doing, ": ", cublasGetStatusString(status)));
}

class CublasGemm final : public Gemm {
 public:
  explicit CublasGemm(Device device) {
    DeviceGuard const guard(device);
    check(cublasCreate(&handle_), "cublasCreate");
  }
  ~CublasGemm() override { static_cast<void>(cublasDestroy(handle_)); }
  CublasGemm(CublasGemm const&) = delete;
  CublasGemm& operator=(CublasGemm const&) = delete;

  // cuBLAS counts by columns: what is row-major here is transposed there, so it computes outᵀ = bᵀ·aᵀ.
  void multiply(Transposed transposed, TensorView const& a, TensorView const& b, TensorView const& out,
                Stream& stream) override {
    if (&stream != stream_) {
      check(cublasSetStream(handle_, cuda_stream(stream).handle()), "cublasSetStream");
      stream_ = &stream;
    }
    bool const half = out.dtype == DType::bf16;
    cudaDataType const type = half ? CUDA_R_16BF : CUDA_R_32F;
    cublasComputeType_t const compute = half ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
    float const one = 1;
    float const zero = 0;
    std::size_t const inner = transposed == Transposed::first ? a.shape[0] : a.shape[1];
    check(cublasGemmEx(handle_, transposed == Transposed::second ? CUBLAS_OP_T : CUBLAS_OP_N,
                       transposed == Transposed::first ? CUBLAS_OP_T : CUBLAS_OP_N,
                       static_cast<int>(out.shape[1]), static_cast<int>(out.shape[0]),
                       static_cast<int>(inner), &one, b.data, type, static_cast<int>(b.shape[1]), a.data,
                       type, static_cast<int>(a.shape[1]), &zero, out.data, type,
                       static_cast<int>(out.shape[1]), compute, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  }

  // A kernel of cuBLAS divides a product among its multiprocessors beforehand.
  void plan_for(int multiprocessors) override {
    check(cublasSetSmCountTarget(handle_, multiprocessors), "cublasSetSmCountTarget");
  }

 private:
  cublasHandle_t handle_ = nullptr;
  Stream* stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Gemm> make_gpu_gemm(Device device) { return std::make_unique<CublasGemm>(device); }

}  // namespace ddp::bench

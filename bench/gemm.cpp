#include "gemm.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"
#include "gpu.hpp"

namespace ddp::bench {
namespace {

class HostGemm final : public Gemm {
 public:
  void multiply(Transposed transposed, TensorView const& a, TensorView const& b, TensorView const& out,
                Stream& stream) override {
    struct Matrix {
      float const* data;
      std::size_t row;     // elements from one row to the next
      std::size_t column;  // and from one column
      float operator()(std::size_t i, std::size_t j) const { return data[i * row + j * column]; }
    };
    auto const matrix = [](TensorView const& view, bool turned) {
      std::size_t const width = view.shape[1];
      return Matrix{view.as<float>().data(), turned ? 1 : width, turned ? width : 1};
    };
    Matrix const left = matrix(a, transposed == Transposed::first);
    Matrix const right = matrix(b, transposed == Transposed::second);
    std::size_t const inner = transposed == Transposed::first ? a.shape[0] : a.shape[1];
    float* const result = out.as<float>().data();
    host_stream(stream).enqueue([left, right, result, rows = out.shape[0], columns = out.shape[1], inner] {
      for (std::size_t i = 0; i < rows; ++i) {
        float* const line = result + i * columns;
        std::fill_n(line, columns, 0.0F);
        for (std::size_t k = 0; k < inner; ++k) {
          float const factor = left(i, k);
          for (std::size_t j = 0; j < columns; ++j) line[j] += factor * right(k, j);
        }
      }
    });
  }

  void plan_for(int /*multiprocessors*/) override {}
};

}  // namespace

std::unique_ptr<Gemm> make_gemm(Device device, DType dtype) {
  bool const on_cpu = device.kind == DeviceKind::cpu;
  require(dtype == DType::f32 || (dtype == DType::bf16 && !on_cpu),
          text("no matrix products of ", dtype, " on ", device, ": there are f32, and on GPUs bf16"));
  if (on_cpu) return std::make_unique<HostGemm>();
  return make_gpu_gemm(device);
}

}  // namespace ddp::bench

// cuBLAS counts along columns. Read that way, the memory of C is Cᵀ = Bᵀ·Aᵀ: so the operands change places,
// and one that is row-major is already transposed.
#include "nn/gemm_cuda.hpp"

#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"

namespace nn::cuda {
namespace {

struct Operand {
  cublasOperation_t operation = CUBLAS_OP_N;
  std::int64_t stride = 0;
};

// A matrix of one row may have any row stride; cuBLAS wants one that is not below the number of columns.
template <class T>
Operand operand(Matrix<T> const& m) {
  bool const rows_are_dense = m.column_stride == 1;
  ddp::require(rows_are_dense || m.row_stride == 1,
               "nn::cuda::gemm: a matrix must be row-major, or the transposed of such a one");
  std::size_t const stride =
      rows_are_dense ? std::max(m.row_stride, m.columns) : std::max(m.column_stride, m.rows);
  return {rows_are_dense ? CUBLAS_OP_N : CUBLAS_OP_T,
          std::max(static_cast<std::int64_t>(stride), std::int64_t{1})};
}

auto function_for(float /*type*/) { return &cublasSgemm_64; }
auto function_for(double /*type*/) { return &cublasDgemm_64; }

}  // namespace

template <class T>
void gemm(Context const& context, Matrix<T const> a, Matrix<T const> b, Matrix<T> c, Into into) {
  if (c.rows == 0 || c.columns == 0 || (a.columns == 0 && into == Into::add)) return;
  ddp::DeviceGuard const guard(context.device());
  Operand const left = operand(b);
  Operand const right = operand(a);
  T const one = 1;
  T const keep = into == Into::add ? one : T{0};
  check(function_for(T{})(context.cublas(), left.operation, right.operation,
                          static_cast<std::int64_t>(c.columns), static_cast<std::int64_t>(c.rows),
                          static_cast<std::int64_t>(a.columns), &one, b.data, left.stride, a.data,
                          right.stride, &keep, c.data, operand(c).stride),
        "a matrix product");
}

template void gemm<float>(Context const&, Matrix<float const>, Matrix<float const>, Matrix<float>, Into);
template void gemm<double>(Context const&, Matrix<double const>, Matrix<double const>, Matrix<double>, Into);

}  // namespace nn::cuda

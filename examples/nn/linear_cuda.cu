#include "ddp/device/device_guard.hpp"
#include "nn/cuda_support.hpp"
#include "nn/floating.hpp"
#include "nn/gemm_cuda.hpp"
#include "nn/linear.hpp"

namespace nn::cuda {
namespace {

constexpr std::size_t kMostBlocks = 65535;
constexpr unsigned kSumColumns = 32;  // of a block that adds columns up: a row of them is one access
constexpr unsigned kSumRows = 16;

// Each row of `rows` becomes `row`.
template <class T>
__global__ void repeat_row(T const* row, T* rows, std::size_t count, std::size_t columns) {
  for (std::size_t i = blockIdx.x; i < count; i += gridDim.x) {
    for (std::size_t j = threadIdx.x; j < columns; j += blockDim.x) rows[i * columns + j] = row[j];
  }
}

// sums += the sum of the rows, always in the same order.
template <class T>
__global__ void add_rows(T const* rows, std::size_t count, std::size_t columns, T* sums) {
  __shared__ T parts[kSumRows][kSumColumns];
  std::size_t const column = std::size_t{blockIdx.x} * kSumColumns + threadIdx.x;
  T sum = 0;
  if (column < columns) {
    for (std::size_t i = threadIdx.y; i < count; i += kSumRows) sum += rows[i * columns + column];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (unsigned part = 1; part < kSumRows; ++part) sum += parts[part][threadIdx.x];
  sums[column] += sum;
}

template <class T>
Matrix<T> matrix(ddp::TensorView const& view, Context const& context) {
  return row_major<T>(elements<std::remove_const_t<T>>(view, context), view.shape[0], view.shape[1]);
}

}  // namespace

void linear_forward(Context const& context, ddp::TensorView const& x, ddp::TensorView const& weight,
                    ddp::TensorView const& bias, ddp::TensorView const& y) {
  if (y.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(x.dtype, [&](auto type) {
    using T = decltype(type);
    auto const result = matrix<T>(y, context);
    auto const blocks = static_cast<unsigned>(std::min(result.rows, kMostBlocks));
    repeat_row<T><<<blocks, kThreads, 0, stream_of(context)>>>(elements<T>(bias, context), result.data,
                                                               result.rows, result.columns);
    check_launch("repeat_row");
    gemm<T>(context, matrix<T const>(x, context), matrix<T const>(weight, context).transposed(), result,
            Into::add);
  });
}

void linear_backward_weights(Context const& context, ddp::TensorView const& x, ddp::TensorView const& dy,
                             ddp::TensorView const& weight_gradient, ddp::TensorView const& bias_gradient) {
  if (dy.count() == 0) return;
  ddp::DeviceGuard const guard(context.device());
  dispatch_floating(x.dtype, [&](auto type) {
    using T = decltype(type);
    auto const slopes = matrix<T const>(dy, context);
    gemm<T>(context, slopes.transposed(), matrix<T const>(x, context), matrix<T>(weight_gradient, context),
            Into::add);
    auto const blocks = static_cast<unsigned>((slopes.columns + kSumColumns - 1) / kSumColumns);
    add_rows<T><<<blocks, dim3(kSumColumns, kSumRows), 0, stream_of(context)>>>(
        slopes.data, slopes.rows, slopes.columns, elements<T>(bias_gradient, context));
    check_launch("add_rows");
  });
}

void linear_backward_input(Context const& context, ddp::TensorView const& dy, ddp::TensorView const& weight,
                           ddp::TensorView const& dx) {
  dispatch_floating(dy.dtype, [&](auto type) {
    using T = decltype(type);
    gemm<T>(context, matrix<T const>(dy, context), matrix<T const>(weight, context), matrix<T>(dx, context),
            Into::overwrite);
  });
}

}  // namespace nn::cuda

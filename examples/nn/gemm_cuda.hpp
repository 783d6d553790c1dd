// Matrix multiplication on a GPU.
#pragma once

#include "nn/context.hpp"
#include "nn/gemm.hpp"

namespace nn::cuda {

/// The product of a[m,k] and b[k,n], written to or added into c[m,n], whose column_stride must be 1. In `a`
/// and `b` one of the strides must be 1. For float and double, through cuBLAS, on the context's stream.
template <class T>
void gemm(Context const& context, Matrix<T const> a, Matrix<T const> b, Matrix<T> c, Into into);

}  // namespace nn::cuda

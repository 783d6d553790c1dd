// Matrix multiplication on one core.
#pragma once

#include "nn/gemm.hpp"

namespace nn::cpu {

/// Width of the vector registers that a kernel is written for.
enum class Vectors { bits128, bits256, bits512 };

/// The widest that this processor has.
[[nodiscard]] Vectors widest_vectors() noexcept;

/// The product of a[m,k] and b[k,n], written to or added into c[m,n], whose column_stride must be 1.
/// Each element is summed in the order of k, whatever m and n are, so that a sample's result does not depend
/// on the batch that it is in. One thread, and thread-safe. For float and double. `vectors` must not be wider
/// than widest_vectors(); narrower ones are for tests.
template <class T>
void gemm(Matrix<T const> a, Matrix<T const> b, Matrix<T> c, Into into, Vectors vectors = widest_vectors());

}  // namespace nn::cpu

// Matrix multiplication on one core.
#pragma once

#include <cstddef>

namespace nn::cpu {

/// A view of a matrix: element (i, j) is data[i * row_stride + j * column_stride].
template <class T>
struct Matrix {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t row_stride = 0;
  std::size_t column_stride = 1;

  [[nodiscard]] Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
};

/// Dense and row-major.
template <class T>
[[nodiscard]] Matrix<T> row_major(T* data, std::size_t rows, std::size_t columns) {
  return {data, rows, columns, columns, 1};
}

enum class Into {
  overwrite,  ///< C = A·B
  add,        ///< C = C + A·B
};

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

// What matrix multiplication is told, on any device.
#pragma once

#include <cstddef>

namespace nn {

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

}  // namespace nn

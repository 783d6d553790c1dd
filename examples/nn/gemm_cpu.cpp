// The product is cut so that a panel of B (kDepth x columns of a tile) stays in the first-level cache while
// all rows of A pass by, and a tile of C stays in registers while `depth` runs. The tile's size depends on
// the width and number of the vector registers, so the kernel exists once for each kind of processor.
#include "nn/gemm_cpu.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
#include <vector>

namespace nn::cpu {
namespace {

constexpr std::size_t kDepth = 256;         // k of a packed block of B
constexpr std::size_t kBlockColumns = 512;  // n of a packed block of B: 512 KiB of f32, in the second level

// One tile: c[rows, columns] (+)= a[rows, depth] · panel[depth, tile columns]. `a` has row pointers, with the
// last valid row repeated for rows that the tile has and the matrix has not.
template <class T>
struct Tile {
  Matrix<T const> a;
  T const* panel = nullptr;
  std::size_t depth = 0;
  T* c = nullptr;
  std::size_t c_stride = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  Into into = Into::add;
};

// How a processor's registers are used: a tile of kRows x (kVectors vectors of kBytes).
template <class T>
struct Kernel {
  std::size_t rows = 0;
  std::size_t columns = 0;
  void (*run)(Tile<T> const&) = nullptr;
};

template <class T, std::size_t kBytes, std::size_t kRows, std::size_t kVectors>
[[gnu::always_inline]] inline void run_tile(Tile<T> const& tile) {
  constexpr std::size_t kLanes = kBytes / sizeof(T);
  using Vector [[gnu::vector_size(kBytes)]] = T;
  std::array<T const*, kRows> row;
  for (std::size_t i = 0; i < kRows; ++i) {
    row[i] = tile.a.data + std::min(i, tile.rows - 1) * tile.a.row_stride;
  }
  std::size_t const a_stride = tile.a.column_stride;
  Vector sum[kRows][kVectors] = {};
  T const* panel = tile.panel;
  for (std::size_t k = 0; k < tile.depth; ++k) {
    Vector b[kVectors];
    // Vector by vector: one copy of the whole array would go through the stack.
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) std::memcpy(&b[v], panel + v * kLanes, kBytes);
    panel += kVectors * kLanes;
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kRows; ++i) {
      T const a = row[i][k * a_stride];
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) sum[i][v] += a * b[v];
    }
  }
  if (tile.columns == kVectors * kLanes) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kRows; ++i) {
      if (i >= tile.rows) break;
      T* const out = tile.c + i * tile.c_stride;
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) {
        Vector result = sum[i][v];
        if (tile.into == Into::add) {
          Vector before;
          std::memcpy(&before, out + v * kLanes, kBytes);
          result += before;
        }
        std::memcpy(out + v * kLanes, &result, kBytes);
      }
    }
    return;
  }
  std::array<T, kRows * kVectors * kLanes> edge;
  std::memcpy(edge.data(), &sum, sizeof sum);
  for (std::size_t i = 0; i < tile.rows; ++i) {
    for (std::size_t j = 0; j < tile.columns; ++j) {
      T& out = tile.c[i * tile.c_stride + j];
      T const result = edge[i * kVectors * kLanes + j];
      out = tile.into == Into::add ? out + result : result;
    }
  }
}

template <class T>
void run_128(Tile<T> const& tile) {
  run_tile<T, 16, 4, 2>(tile);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("arch=x86-64-v3")]] void run_256(Tile<T> const& tile) {
  run_tile<T, 32, 6, 2>(tile);
}

template <class T>
[[gnu::target("arch=x86-64-v4")]] void run_512(Tile<T> const& tile) {
  run_tile<T, 64, 12, 2>(tile);
}

template <class T>
Kernel<T> kernel_for(Vectors vectors) {
  switch (vectors) {
    case Vectors::bits512:
      return {12, 2 * 64 / sizeof(T), &run_512<T>};
    case Vectors::bits256:
      return {6, 2 * 32 / sizeof(T), &run_256<T>};
    case Vectors::bits128:
      break;
  }
  return {4, 2 * 16 / sizeof(T), &run_128<T>};
}

Vectors detect_vectors() noexcept {
  __builtin_cpu_init();
  bool const v3 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                  __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
  bool const v4 = v3 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                  __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                  __builtin_cpu_supports("avx512vl") != 0;
  return v4 ? Vectors::bits512 : v3 ? Vectors::bits256 : Vectors::bits128;
}
#else
template <class T>
Kernel<T> kernel_for(Vectors /*vectors*/) {
  return {4, 2 * 16 / sizeof(T), &run_128<T>};
}

Vectors detect_vectors() noexcept { return Vectors::bits128; }
#endif

// b[k0 .. k0+depth, j0 .. j0+columns] as panels of `width` columns, each [depth, width], the last one filled
// up with zeros.
template <class T>
void pack(Matrix<T const> b, std::size_t width, T* packed) {
  for (std::size_t j = 0; j < b.columns; j += width) {
    std::size_t const columns = std::min(width, b.columns - j);
    T const* const from = b.data + j * b.column_stride;
    if (columns < width) std::fill_n(packed, b.rows * width, T{0});
    if (b.column_stride == 1) {
      for (std::size_t k = 0; k < b.rows; ++k) {
        std::copy_n(from + k * b.row_stride, columns, packed + k * width);
      }
    } else {
      constexpr std::size_t kRun = 16;  // a cache line of f32: read each line of B once
      for (std::size_t k = 0; k < b.rows; k += kRun) {
        std::size_t const end = std::min(k + kRun, b.rows);
        for (std::size_t column = 0; column < columns; ++column) {
          T const* const line = from + column * b.column_stride;
          for (std::size_t at = k; at < end; ++at) packed[at * width + column] = line[at * b.row_stride];
        }
      }
    }
    packed += b.rows * width;
  }
}

}  // namespace

Vectors widest_vectors() noexcept {
  static Vectors const widest = detect_vectors();
  return widest;
}

template <class T>
void gemm(Matrix<T const> a, Matrix<T const> b, Matrix<T> c, Into into, Vectors vectors) {
  Kernel<T> const kernel = kernel_for<T>(vectors);
  thread_local std::vector<T> packed(kDepth * kBlockColumns);  // a multiple of every kernel's columns
  if (a.columns == 0 && into == Into::overwrite) {
    for (std::size_t i = 0; i < c.rows; ++i) std::fill_n(c.data + i * c.row_stride, c.columns, T{0});
  }
  for (std::size_t j0 = 0; j0 < c.columns; j0 += kBlockColumns) {
    std::size_t const columns = std::min(kBlockColumns, c.columns - j0);
    for (std::size_t k0 = 0; k0 < a.columns; k0 += kDepth) {
      std::size_t const depth = std::min(kDepth, a.columns - k0);
      pack<T>(
          {b.data + k0 * b.row_stride + j0 * b.column_stride, depth, columns, b.row_stride, b.column_stride},
          kernel.columns, packed.data());
      Tile<T> tile;
      tile.depth = depth;
      tile.c_stride = c.row_stride;
      tile.into = k0 == 0 ? into : Into::add;
      for (std::size_t j = 0; j < columns; j += kernel.columns) {
        tile.panel = packed.data() + j * depth;
        tile.columns = std::min(kernel.columns, columns - j);
        for (std::size_t i = 0; i < c.rows; i += kernel.rows) {
          tile.rows = std::min(kernel.rows, c.rows - i);
          tile.a = {a.data + i * a.row_stride + k0 * a.column_stride, tile.rows, depth, a.row_stride,
                    a.column_stride};
          tile.c = c.data + i * c.row_stride + j0 + j;
          kernel.run(tile);
        }
      }
    }
  }
}

template void gemm<float>(Matrix<float const>, Matrix<float const>, Matrix<float>, Into, Vectors);
template void gemm<double>(Matrix<double const>, Matrix<double const>, Matrix<double>, Into, Vectors);

}  // namespace nn::cpu

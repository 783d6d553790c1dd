#include "comm/kernels/reduce_kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ddp {
namespace {

using Kind = ReduceOp::Kind;

// What sums are kept in.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;

// Small enough that the accumulators stay in the first-level cache.
constexpr std::size_t kTileBytes = 8192;

template <Kind kind, class A>
A combine(A a, A b) {
  if constexpr (kind == Kind::min || kind == Kind::max) {
    bool const is_beyond = kind == Kind::min ? b < a : a < b;  // never if one is NaN: then `a` stays
    bool const is_nan = b != b;
    return (is_beyond | is_nan) ? b : a;  // not `||`: without a branch the loop is vectorised
  } else if constexpr (std::is_floating_point_v<A>) {
    return kind == Kind::product ? a * b : a + b;
  } else {
    using Wide = std::conditional_t<(sizeof(A) < 4), std::uint32_t, std::make_unsigned_t<A>>;
    auto const x = static_cast<Wide>(a);
    auto const y = static_cast<Wide>(b);
    return static_cast<A>(kind == Kind::product ? x * y : x + y);
  }
}

template <class T>
Accumulator<T> load(T value) {
  return static_cast<Accumulator<T>>(value);
}

// A sum of sources times their factors. A factor of 0 says that the rank has nothing to add: its elements are
// not read, whatever they are (the mean over no samples is NaN).
template <class T>
void add_scaled(Accumulator<T>* tile, std::span<ReduceSource const> sources, std::size_t offset,
                std::size_t count) {
  std::fill_n(tile, count, Accumulator<T>{});
  for (ReduceSource const& source : sources) {
    if (source.factor == 0) continue;
    T const* const elements = static_cast<T const*>(source.data) + offset;
    auto const factor = static_cast<Accumulator<T>>(source.factor);
    for (std::size_t i = 0; i < count; ++i) tile[i] += static_cast<Accumulator<T>>(elements[i]) * factor;
  }
}

template <class T, Kind kind>
void reduce_tile(Accumulator<T>* tile, std::span<ReduceSource const> sources, std::size_t offset,
                 std::size_t count) {
  using A = Accumulator<T>;
  auto const elements = [&](std::size_t s) { return static_cast<T const*>(sources[s].data) + offset; };
  T const* const first = elements(0);
  if (sources.size() == 1) {
    for (std::size_t i = 0; i < count; ++i) tile[i] = load<T>(first[i]);
  } else {
    T const* const second = elements(1);
    for (std::size_t i = 0; i < count; ++i) tile[i] = combine<kind, A>(load<T>(first[i]), load<T>(second[i]));
  }
  for (std::size_t next = 2; next < sources.size(); ++next) {
    T const* const more = elements(next);
    for (std::size_t i = 0; i < count; ++i) tile[i] = combine<kind, A>(tile[i], load<T>(more[i]));
  }
  if constexpr (kind == Kind::average) {
    auto const n = static_cast<A>(sources.size());
    if (std::has_single_bit(sources.size())) {
      A const inverse = A{1} / n;  // exact
      for (std::size_t i = 0; i < count; ++i) tile[i] *= inverse;
    } else {
      for (std::size_t i = 0; i < count; ++i) tile[i] /= n;
    }
  }
}

template <class T, Kind kind, bool scaled>
void reduce_typed(std::span<void* const> destinations, std::span<ReduceSource const> sources,
                  std::size_t count) {
  using A = Accumulator<T>;
  constexpr std::size_t kTile = kTileBytes / sizeof(A);
  alignas(64) std::array<A, kTile> tile;
  alignas(64) std::array<T, std::is_same_v<A, T> ? 1 : kTile> rounded;
  for (std::size_t offset = 0; offset < count; offset += kTile) {
    std::size_t const length = std::min(kTile, count - offset);
    if constexpr (scaled) {
      add_scaled<T>(tile.data(), sources, offset, length);
    } else {
      reduce_tile<T, kind>(tile.data(), sources, offset, length);
    }
    void const* result = tile.data();
    if constexpr (!std::is_same_v<A, T>) {
      for (std::size_t i = 0; i < length; ++i) rounded[i] = T(tile[i]);
      result = rounded.data();
    }
    for (void* const destination : destinations) {
      std::memcpy(static_cast<T*>(destination) + offset, result, length * sizeof(T));
    }
  }
}

template <class T>
void reduce_kind(std::span<void* const> destinations, std::span<ReduceSource const> sources,
                 std::size_t count, Kind kind, bool scaled) {
  switch (kind) {
    case Kind::sum:
      if constexpr (std::is_floating_point_v<Accumulator<T>>) {
        if (scaled) return reduce_typed<T, Kind::sum, true>(destinations, sources, count);
      }
      return reduce_typed<T, Kind::sum, false>(destinations, sources, count);
    case Kind::product:
      return reduce_typed<T, Kind::product, false>(destinations, sources, count);
    case Kind::min:
      return reduce_typed<T, Kind::min, false>(destinations, sources, count);
    case Kind::max:
      return reduce_typed<T, Kind::max, false>(destinations, sources, count);
    case Kind::average:
      if constexpr (std::is_floating_point_v<Accumulator<T>>) {
        return reduce_typed<T, Kind::average, false>(destinations, sources, count);
      }
  }
}

}  // namespace

void reduce_elements(std::span<void* const> destinations, std::span<ReduceSource const> sources,
                     std::size_t count, DType dtype, ReduceOp::Kind kind, bool scaled) {
  dispatch(dtype, [&]<class T>(T) {
    if constexpr (is_reducible(dtype_of<T>)) {  // others are refused before
      reduce_kind<T>(destinations, sources, count, kind, scaled);
    }
  });
}

}  // namespace ddp

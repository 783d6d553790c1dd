#include "ddp/core/tensor.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "core/round_up.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

// The most elements whose size in bytes, with the largest element type and rounded up, does not overflow.
constexpr std::size_t kMaxElements = PTRDIFF_MAX / 16;

Shape::Shape(std::initializer_list<std::size_t> extents)
    : Shape(std::span<std::size_t const>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<std::size_t const> extents) : dimensions_(extents.size()) {
  require(extents.size() <= kMaxDimensions, [&] {
    return text("a shape has at most ", kMaxDimensions, " dimensions, this one has ", extents.size());
  });
  std::copy(extents.begin(), extents.end(), extents_.begin());
  std::size_t elements = 1;
  bool const empty = std::find(extents.begin(), extents.end(), std::size_t{0}) != extents.end();
  for (std::size_t const extent : extents) {
    if (empty) break;
    require(elements <= kMaxElements / extent, [&] {
      return text("a shape of [", join(extents, ","), "] has more elements than memory can have (",
                  kMaxElements, ")");
    });
    elements *= extent;
  }
}

std::size_t Shape::count() const noexcept {
  return std::accumulate(extents().begin(), extents().end(), std::size_t{1}, std::multiplies<>{});
}

std::string to_string(Shape const& shape) {
  std::string shown = "[";
  for (std::size_t const extent : shape.extents()) {
    std::array<char, std::numeric_limits<std::size_t>::digits10 + 1> digits{};
    if (shown.size() > 1) shown += ',';
    shown.append(digits.data(), std::to_chars(digits.begin(), digits.end(), extent).ptr);
  }
  return shown + ']';
}

TensorView slice(TensorView const& whole, std::size_t offset, std::size_t count) {
  require(offset <= whole.count() && count <= whole.count() - offset, [&] {
    return text("slice of ", count, " elements from ", offset, " on leaves ", describe(whole));
  });
  auto* const first = static_cast<std::byte*>(whole.data) + offset * size_of(whole.dtype);
  return {first, Shape{count}, whole.dtype, whole.device};
}

std::string describe(TensorView const& view) { return text(view.dtype, view.shape, " on ", view.device); }

Tensor Tensor::zeros(Shape const& shape, DType dtype) {
  constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register
  std::size_t const bytes = shape.count() * size_of(dtype);
  std::size_t const rounded = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    throw Error(ErrorCode::out_of_memory,
                text("no host memory for ", dtype, shape, ", ", to_string(Bytes{bytes})));
  }
  std::memset(memory, 0, rounded);
  return {TensorView{memory, shape, dtype, Device{}}, std::shared_ptr<void>(memory, &std::free)};
}

}  // namespace ddp

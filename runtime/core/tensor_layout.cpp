#include "core/tensor_layout.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"

namespace ddp {

std::vector<std::size_t> layout_of(std::string const& what, TensorView const& value,
                                   std::span<std::size_t const> strides) {
  Shape const& shape = value.shape;
  require(strides.empty() || strides.size() == shape.dimensions(), [&] {
    return text(what, " is ", describe(value), " with strides [", join(strides, ","),
                "]; expected one stride an axis");
  });
  std::vector<std::size_t> axes;  // with two elements or more, the innermost first
  for (std::size_t axis = shape.dimensions(); axis-- > 0;) {
    if (shape[axis] > 1) axes.push_back(axis);
  }
  bool const as_given = !strides.empty() && value.count() != 0;
  if (as_given) std::ranges::sort(axes, {}, [&](std::size_t axis) { return strides[axis]; });
  std::vector<std::size_t> layout(shape.dimensions(), 1);
  std::size_t next = 1;
  for (std::size_t const axis : axes) {
    require(!as_given || strides[axis] == next, [&] {
      return text(what, " is ", describe(value), " with strides [", join(strides, ","),
                  "]; expected no gap and no overlap: make it contiguous");
    });
    layout[axis] = next;
    next *= shape[axis];
  }
  return layout;
}

}  // namespace ddp

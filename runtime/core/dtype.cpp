#include "ddp/core/dtype.hpp"

#include <array>

namespace ddp {

// In the order of DType.
constexpr std::array<std::string_view, kDTypeCount> kDTypeNames{"f64", "f32", "f16", "bf16", "i32",
                                                                "i64", "u8",  "i8",  "i16",  "bool"};

std::string_view to_string(DType dtype) noexcept {
  auto const index = static_cast<std::size_t>(dtype);
  return index < kDTypeNames.size() ? kDTypeNames[index] : "unknown dtype";
}

}  // namespace ddp

// A point-to-point message, whoever carries it.
#pragma once

#include <cstddef>

#include "ddp/core/dtype.hpp"

namespace ddp {

/// One side of it.
struct Message {
  bool sending = false;
  std::size_t peer = 0;
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::u8;
  std::size_t whole = 0;  ///< of the message that this is a part of: what both sides must agree on
};

}  // namespace ddp

// The name of a GPU, or of a MIG instance of one.
#pragma once

#include <compare>
#include <ostream>
#include <string>
#include <string_view>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// A UUID, the same whatever is visible, and after a reboot. Compared with its own kind or with text.
struct GpuId {
  std::string value = {};  ///< "GPU-8c0f…" or "MIG-41b3…", as the driver writes it; empty for a CPU
  /// Whether it is an instance's: a part of a GPU that CUDA addresses as a device of its own.
  [[nodiscard]] bool is_mig() const noexcept { return value.starts_with("MIG-"); }
  friend auto operator<=>(GpuId const&, GpuId const&) noexcept = default;  ///< By letters.
  friend bool operator==(GpuId const&, GpuId const&) noexcept = default;   ///< By letters.
  /// By letters.
  friend bool operator==(GpuId const& id, std::string_view text) noexcept { return id.value == text; }
  friend std::ostream& operator<<(std::ostream& out, GpuId const& id) {
    return out << id.value;
  }  ///< `value`.
};

}  // namespace ddp

// The name of a logical device: cpu, cuda:0, cuda:1.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

enum class DeviceKind : std::uint8_t { cpu, cuda };

[[nodiscard]] constexpr char const* to_string(DeviceKind kind) noexcept {
  return kind == DeviceKind::cpu ? "cpu" : "cuda";
}

/// Which memory and which processor, by logical number. A value: copying it opens nothing.
struct Device {
  DeviceKind kind = DeviceKind::cpu;  ///< CPU or GPU
  DeviceIndex index{0};               ///< logical; 0 for the CPU unless it is cut into virtual devices
  /// By kind, then by index.
  friend constexpr auto operator<=>(Device const&, Device const&) noexcept = default;
  // Written out although the line above implies it: nvcc 13 would give the host compiler no body for it.
  friend constexpr bool operator==(Device const&, Device const&) noexcept = default;  ///< The same device.
};

/// "cpu:0", "cuda:1".
[[nodiscard]] std::string to_string(Device device);
inline std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

}  // namespace ddp

// The one owner of what this process sees: which GPUs, how devices are cut, and by what call that was
// settled.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddp/device/device_map.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/physical_device.hpp"

namespace ddp {

/// Where the registry gets its facts from.
struct DeviceSources {
  std::function<std::vector<PhysicalGpu>()> gpus;       ///< the driver's, in CUDA's order
  std::function<std::vector<LogicalDevice>()> visible;  ///< CUDA's, one each; starts CUDA
  std::function<bool()> cuda_in_use;                    ///< whether somebody has started CUDA
  std::function<std::optional<std::string>(char const*)> get_variable;
  std::function<void(char const*, std::string const&)> set_variable;
  std::function<std::string()> why_none = {};  ///< why CUDA shows none, where it can tell
};

inline constexpr char const* kVisibleVariable = "CUDA_VISIBLE_DEVICES";

/// "1 GPU", "2 GPUs".
[[nodiscard]] std::string counted(std::size_t count, char const* what);

/// Implements physical_device.hpp and logical_device.hpp. Any thread.
class DeviceRegistry {
 public:
  static constexpr int kMaxSlices = 1024;  ///< of one device

  explicit DeviceRegistry(DeviceSources sources) : sources_(std::move(sources)) {}
  /// The registry of this process.
  [[nodiscard]] static DeviceRegistry& of_process();

  [[nodiscard]] std::vector<PhysicalDevice> physical(DeviceKind kind);
  [[nodiscard]] std::span<LogicalDevice const> logical(DeviceKind kind);
  [[nodiscard]] LogicalDevice const& at(Device device);
  /// As ddp::require_devices().
  void require(std::span<Device const> devices);

  void set_visible(std::span<int const> numbers);
  void set_logical(VirtualDevices const& cut);

  /// As ddp::device_map().
  [[nodiscard]] DeviceMap map();

  /// Which GPUs this process sees and why, for messages: "CUDA_VISIBLE_DEVICES= leaves 0 logical devices …".
  [[nodiscard]] std::string describe_gpus();

  /// Whether list_logical_devices(kind) has been answered, so that it cannot change any more.
  [[nodiscard]] bool is_settled(DeviceKind kind) const noexcept;

 private:
  struct Kind {
    std::atomic<bool> settled = false;
    std::string settled_by;  ///< the public function whose call settled it
    std::vector<LogicalDevice> devices;
    std::map<int, std::vector<std::optional<Bytes>>> cuts;  ///< by physical number
  };

  Kind& of(DeviceKind kind) noexcept { return kinds_[static_cast<std::size_t>(kind)]; }
  Kind const& of(DeviceKind kind) const noexcept { return kinds_[static_cast<std::size_t>(kind)]; }
  void settle(DeviceKind kind);
  [[nodiscard]] std::vector<LogicalDevice> list_cpus();
  [[nodiscard]] std::vector<LogicalDevice> list_gpus();
  /// How many logical devices each device stands for.
  [[nodiscard]] std::size_t slices_of_environment() const;
  /// Limits from set_logical() or the environment; one nullopt if the device is not cut.
  [[nodiscard]] std::vector<std::optional<Bytes>> limits_of_cpu(std::function<bool()> const& has_gpus) const;
  [[nodiscard]] std::vector<std::optional<Bytes>> limits_of_gpu(
      GpuId const& uuid, std::span<PhysicalDevice const> physical) const;
  void refuse_if_late(std::string const& call, DeviceKind kind);
  [[nodiscard]] std::string missing(Device device, std::span<Device const> together);
  [[nodiscard]] std::string what_there_is(DeviceKind kind, std::map<GpuId, PhysicalIndex> const& numbers);

  DeviceSources sources_;
  std::recursive_mutex mutex_;
  std::array<Kind, 2> kinds_;
  /// CUDA_VISIBLE_DEVICES as it was before set_visible() changed it.
  std::optional<std::optional<std::string>> inherited_;
  std::string chosen_;  ///< the call of set_visible_devices() that is in effect; empty for none
  std::vector<int> chosen_numbers_;
};

}  // namespace ddp

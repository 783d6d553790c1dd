// How much memory of each logical device this process uses, and the limit that was set for it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ddp/device/memory.hpp"

namespace ddp {

/// Counts what is in use on one device. Any thread.
class MemoryAccount {
 public:
  MemoryAccount(Device device, std::optional<Bytes> limit) : device_(device), limit_(limit) {}

  /// Counts `bytes`, rounded up. Past the limit it counts nothing and throws Error(out_of_memory) with the
  /// device, the limit, what is in use, and what was asked for, which `what` describes.
  void take(Bytes bytes, std::string const& what);
  /// Takes back what take() of the same number counted.
  void give(Bytes bytes) noexcept;

  [[nodiscard]] MemoryStats use() const;  ///< `reserved` is what is in use.
  void reset_peak_memory_stats();

 private:
  Device device_;
  std::optional<Bytes> limit_;
  mutable std::mutex mutex_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
};

/// Counts `bytes` of `device`, described by `what`, while the result or a copy lives. Throws as
/// MemoryAccount::take(). Free the memory before the result.
[[nodiscard]] std::shared_ptr<void> count_memory(Device device, Bytes bytes, std::string const& what);

/// What a program has set for one device's memory. Fixed once that memory is used.
class MemorySettings {
 public:
  /// What is known of the device when a setting is checked.
  struct Facts {
    Device device;
    Bytes total{0};                      ///< all memory it has
    std::optional<Bytes> virtual_limit;  ///< what it was made with, as a virtual device
    int sharers = 1;                     ///< logical devices of the same GPU in this process
  };

  // Each throws as its public function, and then changes nothing.
  void set_growth(Facts const& facts, bool grow);
  void set_limit(Facts const& facts, Bytes limit);
  void set_fraction(Facts const& facts, double fraction);

  [[nodiscard]] std::optional<Bytes> limit(Facts const& facts) const;
  /// Whether the pool grows; `by_default`: the setting for all devices. Throws Error(invalid_state) where a
  /// pool that is to take everything shares its GPU with others and has no limit.
  [[nodiscard]] bool grows(Facts const& facts, bool by_default) const;

  /// From now on every change throws Error(invalid_state) naming `first_use`.
  void settle(std::string first_use);

 private:
  void check_time(Device device, std::string const& call) const;
  void check_limit_is_open(Facts const& facts, std::string const& call) const;

  std::optional<bool> growth_;
  std::optional<Bytes> limit_;
  std::optional<double> fraction_;
  std::string first_use_;
};

/// The one owner of what is set and counted in this process, by logical device.
class DeviceMemory {
 public:
  [[nodiscard]] static DeviceMemory& of_process();

  void set_growth(bool grow);
  /// Calls action(MemorySettings&, MemorySettings::Facts const&) for that device, under the lock.
  template <class Action>
  auto with(Device device, Action action) {
    MemorySettings::Facts const facts = facts_of(device);  // asks CUDA: not under the lock
    std::lock_guard const lock(mutex_);
    return action(settings_[device], facts);
  }

  /// The account of a device whose memory is now used, for `what`. Its settings can change no more.
  [[nodiscard]] std::shared_ptr<MemoryAccount> use(Device device, std::string const& what);
  /// The account of a device if it has been used; otherwise null.
  [[nodiscard]] std::shared_ptr<MemoryAccount> find(Device device);
  /// Whether the pool of a GPU, which is now made, grows.
  [[nodiscard]] bool grows(Device device);

 private:
  [[nodiscard]] static MemorySettings::Facts facts_of(Device device);

  std::mutex mutex_;
  bool growth_ = true;
  std::string first_gpu_use_;
  std::map<Device, MemorySettings> settings_;
  std::map<Device, std::shared_ptr<MemoryAccount>> accounts_;
};

}  // namespace ddp

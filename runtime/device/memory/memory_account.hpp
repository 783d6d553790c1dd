// What a program has set for the memory of each logical device, and how much of it this process uses.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "ddp/device/memory.hpp"

namespace ddp {

/// The memory of one device. Its settings are fixed once it is used. Any thread.
class MemoryAccount {
 public:
  /// What is known of the device.
  struct Facts {
    Device device;
    Bytes total{0};                      ///< all memory it has
    std::optional<Bytes> virtual_limit;  ///< what it was made with, as a virtual device
    int sharers = 1;                     ///< logical devices of the same GPU in this process
  };

  explicit MemoryAccount(Facts const& facts) : facts_(facts) {}
  /// That of a device of this process, until the process ends. Throws Error(not_found).
  [[nodiscard]] static MemoryAccount& of(Device device);

  // Each throws as its public function, and then changes nothing.
  void set_growth(bool grow);
  void set_limit(Bytes limit);
  void set_fraction(double fraction);

  [[nodiscard]] std::optional<Bytes> limit() const;
  /// Whether the pool grows; `by_default`: the setting for all devices. Throws Error(invalid_state) where a
  /// pool that is to take everything shares its GPU with others and has no limit.
  [[nodiscard]] bool grows(bool by_default) const;

  /// Counts `bytes`, rounded up. Past the limit it counts nothing and throws Error(out_of_memory) with the
  /// device, the limit, what is in use, and what was asked for, which `what` describes.
  void take(Bytes bytes, std::string const& what);
  /// Takes back what take() of the same number counted.
  void give(Bytes bytes) noexcept;

  [[nodiscard]] MemoryStats use() const;  ///< `reserved` is what is in use.
  void reset_peak_memory_stats();
  /// What the memory was first used for; empty if it was not.
  [[nodiscard]] std::string first_use() const;

 private:
  // With mutex_ held.
  void check_time(std::string const& call) const;
  void check_limit_is_open(std::string const& call) const;
  [[nodiscard]] std::optional<Bytes> limit_now() const;

  Facts const facts_;
  mutable std::mutex mutex_;
  std::optional<bool> growth_;
  std::optional<Bytes> limit_;
  std::optional<double> fraction_;
  std::string first_use_;
  std::size_t in_use_ = 0;
  std::size_t peak_ = 0;
};

/// Counts `bytes` of `device`, described by `what`, while the result or a copy lives. Throws as
/// MemoryAccount::take(). Free the memory before the result.
[[nodiscard]] std::shared_ptr<void> count_memory(Device device, Bytes bytes, std::string const& what);

/// Whether the pool of a GPU, which is now made, grows. Throws as MemoryAccount::grows().
[[nodiscard]] bool pool_grows(Device device);

}  // namespace ddp

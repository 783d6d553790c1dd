#include "ddp/device/memory_settings.hpp"

#include <cmath>

#include "ddp/core/text.hpp"
#include "ddp/device/queries.hpp"
#include "device/info/api_call.hpp"
#include "device/memory/memory_account.hpp"

namespace ddp {
namespace {

[[noreturn]] void refuse(std::string const& call, std::string const& why) {
  throw Error(ErrorCode::invalid_state, text(call, ": ", why));
}

}  // namespace

void MemorySettings::check_time(Device device, std::string const& call) const {
  if (first_use_.empty()) return;
  refuse(call, text("too late, since memory of ", device, " is in use already (first for ", first_use_,
                    "); move this call before the first tensor of that device and before World::init()"));
}

void MemorySettings::check_limit_is_open(Facts const& facts, std::string const& call) const {
  check_time(facts.device, call);
  if (!facts.virtual_limit) return;
  refuse(call, text(facts.device, " is a virtual device that was made with a limit of ",
                    to_string(*facts.virtual_limit),
                    "; give it the limit that you want where it is made (set_logical_devices)"));
}

void MemorySettings::set_growth(Facts const& facts, bool grow) {
  std::string const call = text("set_memory_growth(", facts.device, ", ", grow ? "true" : "false", ")");
  if (facts.device.kind == DeviceKind::cpu) {
    throw Error(ErrorCode::unsupported,
                text(call,
                     ": memory of a CPU comes from no pool that could be filled at the start; name a "
                     "GPU, or give the CPU a limit with set_memory_limit()"));
  }
  check_time(facts.device, call);
  growth_ = grow;
}

void MemorySettings::set_limit(Facts const& facts, Bytes limit) {
  std::string const call = text("set_memory_limit(", facts.device, ", ", to_string(limit), ")");
  require(limit.value > 0, text(call,
                                ": expected more than 0 B; a device that is not to be used should be "
                                "left out of the visible ones"));
  require(limit <= facts.total,
          text(call, ": ", facts.device, " has ", to_string(facts.total), " in all; ask for that or less"));
  check_limit_is_open(facts, call);
  if (fraction_) {
    refuse(call, text("contradicts set_memory_fraction(", facts.device, ", ", *fraction_,
                      "), which was called before; keep one of the two"));
  }
  limit_ = limit;
}

void MemorySettings::set_fraction(Facts const& facts, double fraction) {
  std::string const call = text("set_memory_fraction(", facts.device, ", ", fraction, ")");
  require(std::isfinite(fraction) && fraction > 0 && fraction <= 1,
          text(call, ": expected a part of the device's memory, above 0 and at most 1"));
  check_limit_is_open(facts, call);
  if (limit_) {
    refuse(call, text("contradicts set_memory_limit(", facts.device, ", ", to_string(*limit_),
                      "), which was called before; keep one of the two"));
  }
  fraction_ = fraction;
}

std::optional<Bytes> MemorySettings::limit(Facts const& facts) const {
  if (facts.virtual_limit) return facts.virtual_limit;
  if (limit_) return limit_;
  if (!fraction_) return std::nullopt;
  return Bytes{static_cast<std::size_t>(*fraction_ * static_cast<double>(facts.total.value))};
}

bool MemorySettings::grows(Facts const& facts, bool by_default) const {
  bool const grows = growth_.value_or(by_default);
  if (!grows && facts.sharers > 1 && !limit(facts)) {
    refuse("set_memory_growth(false)",
           text(facts.device, " is one of ", facts.sharers,
                " logical devices of one GPU and has no limit, so it would take what the others need; give "
                "each a limit (set_logical_devices or set_memory_limit), or let it grow"));
  }
  return grows;
}

void MemorySettings::settle(std::string first_use) {
  if (first_use_.empty()) first_use_ = std::move(first_use);
}

DeviceMemory& DeviceMemory::of_process() {
  static DeviceMemory memory;
  return memory;
}

void DeviceMemory::set_growth(bool grow) {
  std::lock_guard const lock(mutex_);
  if (!first_gpu_use_.empty()) {
    refuse(text("set_memory_growth(", grow ? "true" : "false", ")"),
           text("too late, since memory of a GPU is in use already (first for ", first_gpu_use_,
                "); move this call before the first tensor of a GPU and before World::init()"));
  }
  growth_ = grow;
}

MemorySettings::Facts DeviceMemory::facts_of(Device device) {
  LogicalDevice const& here = logical_device(device);
  // Not memory_info(): that would make a context on a GPU.
  return {device, device_properties(device).memory, here.limit, here.slices};
}

std::shared_ptr<MemoryAccount> DeviceMemory::use(Device device, std::string const& what) {
  if (auto account = find(device)) return account;
  return with(device, [&](MemorySettings& settings, MemorySettings::Facts const& facts) {
    auto& account = accounts_[device];
    if (!account) {
      account = std::make_shared<MemoryAccount>(device, settings.limit(facts));
      settings.settle(what);
      if (device.kind == DeviceKind::cuda && first_gpu_use_.empty()) first_gpu_use_ = what;
    }
    return account;
  });
}

std::shared_ptr<MemoryAccount> DeviceMemory::find(Device device) {
  std::lock_guard const lock(mutex_);
  auto const found = accounts_.find(device);
  return found == accounts_.end() ? nullptr : found->second;
}

bool DeviceMemory::grows(Device device) {
  return with(device, [&](auto& settings, auto const& facts) { return settings.grows(facts, growth_); });
}

void set_memory_growth(bool grow) { DeviceMemory::of_process().set_growth(grow); }

void set_memory_growth(Device device, bool grow) {
  ApiCall const call("set_memory_growth()");
  DeviceMemory::of_process().with(
      device, [&](auto& settings, auto const& facts) { settings.set_growth(facts, grow); });
}

void set_memory_limit(Device device, Bytes limit) {
  ApiCall const call("set_memory_limit()");
  DeviceMemory::of_process().with(
      device, [&](auto& settings, auto const& facts) { settings.set_limit(facts, limit); });
}

void set_memory_fraction(Device device, double fraction) {
  ApiCall const call("set_memory_fraction()");
  DeviceMemory::of_process().with(
      device, [&](auto& settings, auto const& facts) { settings.set_fraction(facts, fraction); });
}

std::optional<Bytes> memory_limit(Device device) {
  ApiCall const call("memory_limit()");
  return DeviceMemory::of_process().with(
      device, [&](auto& settings, auto const& facts) { return settings.limit(facts); });
}

}  // namespace ddp

#include "device/memory/memory_account.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/round_up.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory_settings.hpp"
#include "ddp/device/queries.hpp"
#include "device/info/api_call.hpp"

namespace ddp {
namespace {

std::size_t rounded(Bytes bytes) noexcept { return round_up(bytes.value, kMemoryGranularity.value); }

[[noreturn]] void refuse(std::string const& call, std::string const& why) {
  throw Error(ErrorCode::invalid_state, text(call, ": ", why));
}

struct Accounts {
  std::mutex mutex;  // of what follows
  std::map<Device, MemoryAccount> by_device;
  bool grow = true;  // all but the GPUs for which something else is set
};

Accounts& accounts() {
  static auto& all = *new Accounts;  // never destroyed: other statics free memory at exit
  return all;
}

}  // namespace

MemoryAccount& MemoryAccount::of(Device device) {
  Accounts& all = accounts();
  {
    std::lock_guard const lock(all.mutex);
    if (auto const found = all.by_device.find(device); found != all.by_device.end()) return found->second;
  }
  LogicalDevice const& here = logical_device(device);
  // Asks CUDA, so not under the lock. Not memory_info(): that would make a context on a GPU.
  Facts const facts{device, device_properties(device).memory, here.limit, here.slices};
  std::lock_guard const lock(all.mutex);
  return all.by_device.try_emplace(device, facts).first->second;
}

void MemoryAccount::check_time(std::string const& call) const {
  if (first_use_.empty()) return;
  refuse(call, text("too late, since memory of ", facts_.device, " is in use already (first for ", first_use_,
                    "); move this call before the first tensor of that device and before World::init()"));
}

void MemoryAccount::check_limit_is_open(std::string const& call) const {
  check_time(call);
  if (!facts_.virtual_limit) return;
  refuse(call, text(facts_.device, " is a virtual device that was made with a limit of ",
                    to_string(*facts_.virtual_limit),
                    "; give it the limit that you want where it is made (set_logical_devices)"));
}

void MemoryAccount::set_growth(bool grow) {
  std::string const call = text("set_memory_growth(", facts_.device, ", ", grow ? "true" : "false", ")");
  if (facts_.device.kind == DeviceKind::cpu) {
    throw Error(ErrorCode::unsupported,
                text(call,
                     ": memory of a CPU comes from no pool that could be filled at the start; name a "
                     "GPU, or give the CPU a limit with set_memory_limit()"));
  }
  std::lock_guard const lock(mutex_);
  check_time(call);
  growth_ = grow;
}

void MemoryAccount::set_limit(Bytes limit) {
  std::string const call = text("set_memory_limit(", facts_.device, ", ", to_string(limit), ")");
  require(limit.value > 0, text(call,
                                ": expected more than 0 B; a device that is not to be used should be "
                                "left out of the visible ones"));
  require(limit <= facts_.total,
          text(call, ": ", facts_.device, " has ", to_string(facts_.total), " in all; ask for that or less"));
  std::lock_guard const lock(mutex_);
  check_limit_is_open(call);
  if (fraction_) {
    refuse(call, text("contradicts set_memory_fraction(", facts_.device, ", ", *fraction_,
                      "), which was called before; keep one of the two"));
  }
  limit_ = limit;
}

void MemoryAccount::set_fraction(double fraction) {
  std::string const call = text("set_memory_fraction(", facts_.device, ", ", fraction, ")");
  require(std::isfinite(fraction) && fraction > 0 && fraction <= 1,
          text(call, ": expected a part of the device's memory, above 0 and at most 1"));
  std::lock_guard const lock(mutex_);
  check_limit_is_open(call);
  if (limit_) {
    refuse(call, text("contradicts set_memory_limit(", facts_.device, ", ", to_string(*limit_),
                      "), which was called before; keep one of the two"));
  }
  fraction_ = fraction;
}

std::optional<Bytes> MemoryAccount::limit_now() const {
  if (facts_.virtual_limit) return facts_.virtual_limit;
  if (limit_ || !fraction_) return limit_;
  return Bytes{static_cast<std::size_t>(*fraction_ * static_cast<double>(facts_.total.value))};
}

std::optional<Bytes> MemoryAccount::limit() const {
  std::lock_guard const lock(mutex_);
  return limit_now();
}

bool MemoryAccount::grows(bool by_default) const {
  std::lock_guard const lock(mutex_);
  bool const grows = growth_.value_or(by_default);
  if (!grows && facts_.sharers > 1 && !limit_now()) {
    refuse("set_memory_growth(false)",
           text(facts_.device, " is one of ", facts_.sharers,
                " logical devices of one GPU and has no limit, so it would take what the others need; give "
                "each a limit (set_logical_devices or set_memory_limit), or let it grow"));
  }
  return grows;
}

void MemoryAccount::take(Bytes bytes, std::string const& what) {
  std::size_t const more = rounded(bytes);
  std::lock_guard const lock(mutex_);
  if (first_use_.empty()) first_use_ = what;
  auto const limit = limit_now();
  if (limit && (more > limit->value || in_use_ > limit->value - more)) {
    throw Error(ErrorCode::out_of_memory,
                text("out of memory on ", facts_.device, ": its limit is ", to_string(*limit), ", ",
                     to_string(Bytes{in_use_}), " are in use, and ", what, " asks for ",
                     to_string(Bytes{more}), " more; free tensors, or give this device a higher limit"));
  }
  in_use_ += more;
  peak_ = std::max(peak_, in_use_);
}

void MemoryAccount::give(Bytes bytes) noexcept {
  std::lock_guard const lock(mutex_);
  in_use_ -= rounded(bytes);
}

MemoryStats MemoryAccount::use() const {
  std::lock_guard const lock(mutex_);
  return {Bytes{in_use_}, Bytes{peak_}, Bytes{in_use_}};
}

void MemoryAccount::reset_peak_memory_stats() {
  std::lock_guard const lock(mutex_);
  peak_ = in_use_;
}

std::string MemoryAccount::first_use() const {
  std::lock_guard const lock(mutex_);
  return first_use_;
}

std::shared_ptr<void> count_memory(Device device, Bytes bytes, std::string const& what) {
  auto& account = MemoryAccount::of(device);
  account.take(bytes, what);
  // If there is no memory for the shared_ptr itself, it calls this deleter at once.
  return {&account, [bytes](MemoryAccount* counted) { counted->give(bytes); }};
}

bool pool_grows(Device device) {
  auto const by_default = [] {
    std::lock_guard const lock(accounts().mutex);
    return accounts().grow;
  };
  return MemoryAccount::of(device).grows(by_default());
}

void set_memory_growth(bool grow) {
  Accounts& all = accounts();
  std::lock_guard const lock(all.mutex);
  for (auto const& [device, account] : all.by_device) {
    std::string const first = device.kind == DeviceKind::cuda ? account.first_use() : "";
    if (first.empty()) continue;
    refuse(text("set_memory_growth(", grow ? "true" : "false", ")"),
           text("too late, since memory of a GPU is in use already (first for ", first,
                "); move this call before the first tensor of a GPU and before World::init()"));
  }
  all.grow = grow;
}

void set_memory_growth(Device device, bool grow) {
  ApiCall const call("set_memory_growth()");
  MemoryAccount::of(device).set_growth(grow);
}

void set_memory_limit(Device device, Bytes limit) {
  ApiCall const call("set_memory_limit()");
  MemoryAccount::of(device).set_limit(limit);
}

void set_memory_fraction(Device device, double fraction) {
  ApiCall const call("set_memory_fraction()");
  MemoryAccount::of(device).set_fraction(fraction);
}

std::optional<Bytes> memory_limit(Device device) {
  ApiCall const call("memory_limit()");
  return MemoryAccount::of(device).limit();
}

}  // namespace ddp

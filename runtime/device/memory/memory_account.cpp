#include "device/memory/memory_account.hpp"

#include <algorithm>

#include "core/round_up.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

std::size_t rounded(Bytes bytes) noexcept { return round_up(bytes.value, kMemoryGranularity.value); }

}  // namespace

void MemoryAccount::take(Bytes bytes, std::string const& what) {
  std::size_t const more = rounded(bytes);
  std::lock_guard const lock(mutex_);
  if (limit_ && (more > limit_->value || in_use_ > limit_->value - more)) {
    throw Error(ErrorCode::out_of_memory,
                text("out of memory on ", device_, ": its limit is ", to_string(*limit_), ", ",
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

std::shared_ptr<void> count_memory(Device device, Bytes bytes, std::string const& what) {
  auto account = DeviceMemory::of_process().use(device, what);
  account->take(bytes, what);
  // If there is no memory for the shared_ptr itself, it calls this deleter at once.
  auto* const counted = account.get();
  return {counted, [account = std::move(account), bytes](void* /*account*/) { account->give(bytes); }};
}

}  // namespace ddp

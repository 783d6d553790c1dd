#include "ddp/device/device_placement.hpp"

#include <atomic>
#include <mutex>
#include <set>

#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"

namespace ddp {
namespace {

// Switches of the process; this file is their only owner.
std::atomic<bool> soft = false;
std::atomic<bool> logs = false;

bool is_first_time(Device device) {
  static std::mutex mutex;
  static std::set<Device> seen;
  std::lock_guard const lock(mutex);
  return seen.insert(device).second;
}

}  // namespace

void set_soft_placement(bool on) noexcept { soft.store(on, std::memory_order_relaxed); }
bool soft_placement() noexcept { return soft.load(std::memory_order_relaxed); }

Device place_device(Device wanted) {
  try {
    static_cast<void>(logical_device(wanted));
    return wanted;
  } catch (Error const& error) {
    if (error.code() != ErrorCode::not_found || !soft_placement()) throw;
    Device const instead{};
    if (is_first_time(wanted)) {
      log(LogLevel::warning,
          text(wanted, " is not there, and soft placement takes ", instead, " in its place: ", error.what()));
    }
    return instead;
  }
}

void set_log_device_placement(bool on) noexcept { logs.store(on, std::memory_order_relaxed); }
bool log_device_placement() noexcept { return logs.load(std::memory_order_relaxed); }

void log_placement(std::string_view what, TensorView const& tensor) {
  if (!log_device_placement()) return;
  log_line("placement", text(what, ' ', describe(tensor)));
}

}  // namespace ddp

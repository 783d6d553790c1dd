#include "ddp/device/device_scope.hpp"

#include <utility>

#include "ddp/core/device_name.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_placement.hpp"
#include "device/info/api_call.hpp"

namespace ddp {
namespace {

thread_local Device innermost;

Device device_of(std::string_view name, std::optional<Rank> own) {
  DeviceName const parsed = parse_device_name(name);
  require(!parsed.rank || parsed.rank == own, [&] {
    return text("DeviceScope(\"", name, "\") is of rank ", *parsed.rank,
                own ? text(", and this is rank ", *own) : std::string(", and nothing says which this is"),
                ": a scope is of a device of its own process; name it without /job:…/task:", *parsed.rank);
  });
  return parsed.device;
}

Device placed(Device device) {
  ApiCall const call("DeviceScope");
  return place_device(device);
}

}  // namespace

Device default_device() noexcept { return innermost; }

DeviceScope::DeviceScope(Device device) : before_(std::exchange(innermost, placed(device))) {}
DeviceScope::DeviceScope(std::string_view name, std::optional<Rank> own)
    : DeviceScope(device_of(name, own)) {}
DeviceScope::~DeviceScope() { innermost = before_; }

}  // namespace ddp

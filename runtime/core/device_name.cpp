#include "ddp/core/device_name.hpp"

#include <string>

#include "core/parse_number.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::string_view kJob = "/job:localhost/replica:0/task:";
constexpr std::string_view kDevice = "/device:";

std::string quoted(std::string_view name) {
  constexpr std::size_t kMost = 80;
  return name.size() <= kMost ? text('"', name, '"') : text('"', name.substr(0, kMost), "…\"");
}

[[noreturn]] void refuse(std::string_view name) {
  throw Error(
      ErrorCode::invalid_argument,
      text(quoted(name),
           " is no device: expected cpu, cpu:0, cuda, cuda:1, /gpu:0, /GPU:0, /cpu:0, /device:GPU:1 or "
           "/job:localhost/replica:0/task:3/device:GPU:1"));
}

/// Decimal digits without leading zeros.
std::optional<int> number(std::string_view digits) {
  if (digits.starts_with('-') || (digits.size() > 1 && digits[0] == '0')) return std::nullopt;
  return parse_number<int>(digits);
}

/// A device such as "GPU:1", with these words for CPU and GPU; "cuda" is number 0, if that may lack.
std::optional<Device> kind_and_number(std::string_view word, std::string_view cpu, std::string_view gpu,
                                      bool number_may_lack) {
  std::size_t const colon = word.find(':');
  std::string_view const kind = word.substr(0, colon);
  if (kind != cpu && kind != gpu) return std::nullopt;
  if (colon == std::string_view::npos && !number_may_lack) return std::nullopt;
  auto const index = colon == std::string_view::npos ? std::optional(0) : number(word.substr(colon + 1));
  if (!index) return std::nullopt;
  return Device{kind == cpu ? DeviceKind::cpu : DeviceKind::cuda, DeviceIndex{*index}};
}

std::optional<Device> device_of(std::string_view word) {
  if (word.starts_with(kDevice)) {
    return kind_and_number(word.substr(kDevice.size()), "CPU", "GPU", false);
  }
  if (!word.starts_with('/')) return kind_and_number(word, "cpu", "cuda", true);
  auto const upper = kind_and_number(word.substr(1), "CPU", "GPU", false);
  return upper ? upper : kind_and_number(word.substr(1), "cpu", "gpu", false);
}

}  // namespace

DeviceName parse_device_name(std::string_view name) {
  DeviceName parsed;
  std::string_view rest = name;
  if (name.starts_with(kJob)) {
    rest.remove_prefix(kJob.size());
    std::size_t const end = rest.find('/');
    auto const task = number(rest.substr(0, end));
    if (!task || end == std::string_view::npos || !rest.substr(end).starts_with(kDevice)) refuse(name);
    parsed.rank = Rank{*task};
    rest.remove_prefix(end);
  }
  auto const device = device_of(rest);
  if (!device) refuse(name);
  parsed.device = *device;
  return parsed;
}

Device parse_device(std::string_view name) {
  DeviceName const parsed = parse_device_name(name);
  require(!parsed.rank, [&] {
    return text(quoted(name), " names a device of rank ", *parsed.rank,
                ", and a device of this process is expected: leave /job:…/task:", *parsed.rank, " out");
  });
  return parsed.device;
}

std::string to_string(Device device) { return text(to_string(device.kind), ':', device.index); }

}  // namespace ddp

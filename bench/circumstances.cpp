#include "circumstances.hpp"

#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <string_view>
#include <thread>

#include "ddp/core/text.hpp"
#include "ddp/device/inventory.hpp"
#include "ddp/device/logical_device.hpp"
#include "gpu.hpp"

namespace ddp::bench {
namespace {

// The first value of `key` in /proc/cpuinfo, as Linux writes it: "key\t: value".
std::string cpu_info(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::size_t const colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

std::string hardware() {
  std::string model = cpu_info("model name");
  if (model.empty()) model = "unknown processor";
  std::string clock = cpu_info("cpu MHz");
  if (!clock.empty()) clock = text(" at ", clock.substr(0, clock.find('.')), " MHz");
  return text(model, ", ", std::thread::hardware_concurrency(), " CPUs", clock);
}

std::string now() {
  std::time_t const seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> buffer{};
  std::size_t const length = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {buffer.data(), length};
}

std::string gpu(Device device) {
  if (device.kind == DeviceKind::cpu) return "";
  return text(logical_device(device).name, ", driver ", read_inventory().driver_version, ", ",
              gpu_library_versions());
}

}  // namespace

Circumstances circumstances(std::string backend, int ranks, Device device) {
  return {std::move(backend), ranks, hardware(), now(), gpu(device)};
}

std::string gpu_clocks(Device device) {
  if (device.kind == DeviceKind::cpu) return "";
  std::string const command =
      text("nvidia-smi --id=", logical_device(device).uuid,
           " --query-gpu=clocks.sm,clocks.mem,power.draw --format=csv,noheader 2>/dev/null");
  auto const close = [](std::FILE* pipe) { static_cast<void>(::pclose(pipe)); };
  std::unique_ptr<std::FILE, decltype(close)> const pipe(::popen(command.c_str(), "r"), close);
  std::array<char, 128> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "";
  std::string answer = line.data();
  while (!answer.empty() && answer.back() == '\n') answer.pop_back();
  return answer;
}

}  // namespace ddp::bench

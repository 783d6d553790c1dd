// A libnvidia-ml.so.1 with the GPUs that FAKE_NVML tells: "H200/144384 H200/100/4711 H100-mig2", of each its
// model, how much of 143771 MiB is free (all by default), and pids of processes on it; "-migN" cuts it into N
// instances. "denied" is a GPU of others, "lost" one that fell off the bus. "error=9" alone refuses to start,
// "none" is a driver without a GPU. FAKE_NVML_PEERS tells how GPUs reach each other: all over NVLink by
// default, otherwise "none", "pci" or "unknown" for all pairs, or "0-1=none" words for pairs in one
// direction. FAKE_NVML_CUDA is the driver's CUDA, 13000 by default, or "none". With FAKE_NVML_THREAD it
// starts a thread that stays, as driver 580 does.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "device/registry/nvml.hpp"

namespace {

using ddp::nvml::Device;
using ddp::nvml::Memory;
using ddp::nvml::P2pCapability;
using ddp::nvml::PciInfo;
using ddp::nvml::ProcessInfo;
using ddp::nvml::Result;

constexpr unsigned long long kMiB = 1ULL << 20;
constexpr unsigned long long kTotal = 143771 * kMiB;
constexpr Result kLost{15};

Result copy(std::string const& words, char* out, unsigned size) {
  if (words.size() >= size) return Result::insufficient_size;
  std::memcpy(out, words.c_str(), words.size() + 1);
  return Result::success;
}

}  // namespace

namespace ddp::nvml {
struct OpaqueDevice {
  Result opens = Result::success;
  std::string uuid;
  std::string name;
  unsigned number = 0;
  unsigned long long free = kTotal;
  std::vector<unsigned> pids = {};
  std::deque<OpaqueDevice> instances = {};
};
}  // namespace ddp::nvml

namespace {

std::string id(char const* kind, unsigned gpu, unsigned part) {
  return std::string(kind) + "-" + std::string(8, static_cast<char>('a' + gpu)) +
         "-0000-0000-0000-00000000000" + std::to_string(part);
}

ddp::nvml::OpaqueDevice parse(std::string const& word, unsigned number) {
  std::istringstream parts(word);
  std::string model;
  std::getline(parts, model, '/');
  ddp::nvml::OpaqueDevice gpu;
  gpu.number = number;
  gpu.uuid = id("GPU", number, 0);
  if (model == "denied") gpu.opens = Result::no_permission;
  if (model == "lost") gpu.opens = kLost;
  if (std::size_t const cut = model.find("-mig"); cut != std::string::npos) {
    unsigned const count = static_cast<unsigned>(std::stoul(model.substr(cut + 4)));
    model.resize(cut);
    for (unsigned i = 0; i < count; ++i) {
      ddp::nvml::OpaqueDevice instance;
      instance.uuid = id("MIG", number, i + 1);
      gpu.instances.push_back(instance);
    }
  }
  gpu.name = "NVIDIA " + model;
  if (std::string free; std::getline(parts, free, '/')) gpu.free = std::stoull(free) * kMiB;
  for (std::string pid; std::getline(parts, pid, '/');) {
    gpu.pids.push_back(static_cast<unsigned>(std::stoul(pid)));
  }
  return gpu;
}

std::deque<ddp::nvml::OpaqueDevice>& gpus() {
  static std::deque<ddp::nvml::OpaqueDevice> all;
  return all;
}

}  // namespace

// NVML's own names.
// NOLINTBEGIN(readability-identifier-naming)
#define FAKE extern "C" __attribute__((visibility("default"))) Result

static void start_thread() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&start_thread), &self) == 0) std::abort();
  if (dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE) == nullptr)
    std::abort();  // its code is needed for good
  std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
}

FAKE nvmlInit_v2() {
  char const* const told = std::getenv("FAKE_NVML");
  std::string const what = told == nullptr ? "none" : told;
  if (std::getenv("FAKE_NVML_THREAD") != nullptr) start_thread();
  if (what.starts_with("error=")) return Result{std::stoi(what.substr(6))};
  gpus().clear();
  std::istringstream words(what == "none" ? "" : what);
  for (std::string word; words >> word;) gpus().push_back(parse(word, static_cast<unsigned>(gpus().size())));
  return Result::success;
}
FAKE nvmlShutdown() {
  gpus().clear();
  return Result::success;
}
extern "C" __attribute__((visibility("default"))) char const* nvmlErrorString(Result result) {
  return result == kLost ? "GPU is lost" : "a fake error";
}
FAKE nvmlSystemGetDriverVersion(char* out, unsigned size) { return copy("580.00.01", out, size); }
FAKE nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(gpus().size());
  return Result::success;
}
FAKE nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  *device = &gpus().at(index);
  return (*device)->opens;
}
FAKE nvmlDeviceGetUUID(Device device, char* out, unsigned size) { return copy(device->uuid, out, size); }
FAKE nvmlDeviceGetName(Device device, char* out, unsigned size) { return copy(device->name, out, size); }
FAKE nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  info->domain = 0;
  info->bus = 0x1a + device->number;
  info->device = 0;
  return Result::success;
}
FAKE nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  *memory = {kTotal, device->free, kTotal - device->free};
  return Result::success;
}
FAKE nvmlDeviceGetCudaComputeCapability(Device, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return Result::success;
}
FAKE nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) {
  *count = device->instances.empty() ? 0 : 7;
  return Result::success;
}
FAKE nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device* instance) {
  if (index >= device->instances.size()) return Result::not_found;
  *instance = &device->instances[index];
  return Result::success;
}
FAKE nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned* count, ProcessInfo* processes) {
  auto const room = *count;
  *count = static_cast<unsigned>(device->pids.size());
  if (room < *count) return Result::insufficient_size;
  for (unsigned i = 0; i < *count; ++i) processes[i] = {device->pids[i], kMiB, 0, 0};
  return Result::success;
}
FAKE nvmlSystemGetCudaDriverVersion_v2(int* version) {
  char const* const told = std::getenv("FAKE_NVML_CUDA");
  std::string const what = told == nullptr ? "13000" : told;
  if (what == "none") return Result{12};  // NVML_ERROR_LIBRARY_NOT_FOUND
  *version = std::stoi(what);
  return Result::success;
}
FAKE nvmlDeviceGetP2PStatus(Device from, Device to, P2pCapability capability, unsigned* status) {
  char const* const told = std::getenv("FAKE_NVML_PEERS");
  std::istringstream words(told == nullptr ? "nvlink" : told);
  std::string kind = "nvlink";
  std::string const pair = std::to_string(from->number) + "-" + std::to_string(to->number) + "=";
  for (std::string word; words >> word;) {
    if (word.find('=') == std::string::npos) kind = word;
    if (word.starts_with(pair)) kind = word.substr(pair.size());
  }
  if (kind == "unknown") return Result::not_supported;
  bool const reaches = kind == "nvlink" || (kind == "pci" && capability != P2pCapability::nvlink);
  *status = reaches ? ddp::nvml::kP2pOk : 5;  // NVML_P2P_STATUS_NOT_SUPPORTED
  return Result::success;
}
// NOLINTEND(readability-identifier-naming)

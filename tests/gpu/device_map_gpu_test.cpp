// What this library says of devices beside what CUDA says: D1, D2, D4, D6, D9, D11, D16. CUDA reads
// CUDA_VISIBLE_DEVICES once in a process, so each question is asked in a child, and the test itself never
// starts CUDA.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "core/system/child_question.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_map.hpp"
#include "ddp/device/device_scope.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/physical_device.hpp"
#include "ddp/device/queries.hpp"
#include "device/registry/cuda_device_order.hpp"
#include "device/registry/cuda_visible_devices.hpp"
#include "device/registry/gpu_id.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;
using Variable = std::optional<std::string>;

constexpr std::chrono::seconds kTimeout{60};

std::vector<PhysicalGpu> const& gpus() {
  static std::vector<PhysicalGpu> const all = read_inventory().gpus;
  return all;
}

bool has_mig() {
  return std::any_of(gpus().begin(), gpus().end(), [](PhysicalGpu const& gpu) { return gpu.mig_mode; });
}

void set(char const* name, Variable const& value) {
  if (value) {
    ::setenv(name, value->c_str(), 1);
  } else {
    ::unsetenv(name);
  }
}

void say(int fd, std::string const& words) {
  [[maybe_unused]] auto const written = ::write(fd, words.data(), words.size());
}

/// What `work` gives in a process that has not used CUDA, with this CUDA_VISIBLE_DEVICES; or "threw: …".
ChildQuestion ask(std::function<std::string()> const& work, Variable const& visible,
                  Variable const& order = {}) {
  return ChildQuestion([&](int fd) {
    set("CUDA_VISIBLE_DEVICES", visible);
    set("CUDA_DEVICE_ORDER", order);
    ::unsetenv("DDP_VIRTUAL_DEVICES");
    try {
      say(fd, work());
    } catch (std::exception const& error) {
      say(fd, text("threw: ", error.what()));
    }
  });
}

std::string answer_of(ChildQuestion question) {
  auto const answer = question.answer(kTimeout);
  EXPECT_FALSE(answer.late);
  EXPECT_EQ(answer.status, 0) << answer.words;
  return answer.words;
}

std::string in_child(std::function<std::string()> const& work, Variable const& visible = {}) {
  return answer_of(ask(work, visible));
}

/// UUIDs as CUDA lists them, joined by blanks.
std::string cudas_list() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return "";
  Words uuids;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) return "no properties";
    std::array<unsigned char, 16> bytes{};
    std::memcpy(bytes.data(), properties.uuid.bytes, bytes.size());
    uuids.push_back(gpu_id(bytes).value);
  }
  return join(uuids, " ");
}

/// The same as this library lists them.
std::string our_list() {
  Words uuids;
  for (LogicalDevice const& device : list_logical_devices(DeviceKind::cuda))
    uuids.push_back(device.uuid.value);
  return join(uuids, " ");
}

std::string upper(std::string words) {
  for (std::size_t i = 4; i < words.size(); ++i) {
    words[i] = static_cast<char>(std::toupper(static_cast<unsigned char>(words[i])));
  }
  return words;
}

/// Values of CUDA_VISIBLE_DEVICES that mean something here, and some that mean nothing anywhere.
std::vector<Variable> cases() {
  std::vector<Variable> all{std::nullopt};
  for (char const* value : {"",        "0",        "1",          "1,0",        "0,1",      "0,0",
                            "0,1,0",   "0,5000,1", "-1",         "0,-1,1",     "0,2,-1,1", " 0",
                            "0 ",      " 0 , 1 ",  "\t1",        "0;1",        "0 1",      "0x1",
                            "1x,0",    "+0",       "01",         "1.0",        "0,,1",     ",0",
                            "0,",      "all",      "none",       "NoDevFiles", "\"0\"",    "'0'",
                            "\"0,1\"", " ",        "4294967296", "-0",         "0,-0",     "99999999999999",
                            "0,0,9999"}) {
    all.emplace_back(value);
  }
  Words indices;
  for (std::size_t i = gpus().size(); i-- > 0;) indices.push_back(std::to_string(i));
  all.emplace_back(join(indices, ","));
  std::string const first = gpus().front().uuid.value;
  std::string const last = gpus().back().uuid.value;
  for (std::string const& value :
       {first, last + "," + first, first + "," + first, upper(first), first.substr(0, 12), first.substr(0, 5),
        std::string("GPU-"), std::string("GPU-zz"), first + " ", " " + first, first + ", " + last,
        first + "junk," + last, first + ",GPU-00000000," + last, first + ",0", "0," + last, first + ",-1",
        "gpu-" + first.substr(4), "MIG-" + first.substr(4)}) {
    all.emplace_back(value);
  }
  return all;
}

// D2
TEST(VisibleDevicesOnGpus, AreWhatCudaMakesOfTheVariable) {
  if (has_mig()) GTEST_SKIP() << "a GPU is cut into MIG instances, of which CUDA shows one process only one";
  struct Asked {
    Variable value;
    ChildQuestion question;
  };
  for (Variable const& order : {Variable{}, Variable{"PCI_BUS_ID"}, Variable{"FASTEST_FIRST"}}) {
    auto const counted = in_cuda_order(gpus(), order);
    std::deque<Asked> under_way;
    auto const check_oldest = [&] {
      Asked& asked = under_way.front();
      EXPECT_EQ(answer_of(std::move(asked.question)),
                join(read_cuda_visible_devices(asked.value, counted), " "))
          << "CUDA_VISIBLE_DEVICES=\"" << asked.value.value_or("(unset)")
          << "\", CUDA_DEVICE_ORDER=" << order.value_or("(unset)");
      under_way.pop_front();
    };
    for (Variable const& value : cases()) {
      constexpr std::size_t kAtOnce = 8;
      if (under_way.size() == kAtOnce) check_oldest();
      under_way.push_back({value, ask(cudas_list, value, order)});
    }
    while (!under_way.empty()) check_oldest();
  }
}

// D2
TEST(VisibleDevicesOnGpus, ADriverTellsItsOrderWithoutAContext) {
  if (has_mig()) GTEST_SKIP() << "a GPU is cut into MIG instances";
  auto const order = ask_cuda_order();
  EXPECT_EQ(join(order, " "), in_child(cudas_list));
  EXPECT_EQ(order.size(), gpus().size());
}

// D4: cuDeviceGetCount() answers only after cuInit().
TEST(DriverStateOnGpus, ALoadedDriverIsNotAStartedOne) {
  EXPECT_EQ(in_child([] {
              void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
              if (driver == nullptr) return std::string("no driver");
              std::string said = cuda_is_initialized() ? "started " : "loaded ";
              reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"))(0);
              return said + (cuda_is_initialized() ? "started" : "loaded");
            }),
            "loaded started");
}

// D4, D16
TEST(SetVisibleDevicesOnGpus, OrdersWhatCudaSees) {
  std::string const expected = text(gpus().back().uuid, gpus().size() > 1 ? " " : "",
                                    gpus().size() > 1 ? gpus().front().uuid : GpuId{});
  auto const choose = [] {
    auto const physical = list_physical_devices(DeviceKind::cuda);
    std::vector<int> numbers;
    for (PhysicalDevice const& each : physical) {
      if (each.uuid == gpus().back().uuid)
        numbers.insert(numbers.begin(), each.number);
      else if (each.uuid == gpus().front().uuid)
        numbers.push_back(each.number);
    }
    set_visible_devices(numbers);
  };
  auto const both = [&] {
    choose();
    return our_list() + "|" + cudas_list();
  };
  EXPECT_EQ(in_child(both), expected + "|" + expected);
  EXPECT_EQ(in_child([&] {
              choose();
              set_visible_devices({});
              return text(list_logical_devices(DeviceKind::cuda).size(), cudas_list());
            }),
            "0");
}

// D4
TEST(SetVisibleDevicesOnGpus, TooLateSaysWhoWasFirst) {
  EXPECT_THAT(
      in_child([] {
        static_cast<void>(zeros(Shape{1}, DType::f32, Device{DeviceKind::cuda, DeviceIndex{0}}));
        set_visible_devices({0});
        return std::string("accepted");
      }),
      ::testing::StartsWith("threw: set_visible_devices({0}) comes too late: zeros() has already settled"));
  EXPECT_THAT(in_child([] {
                static_cast<void>(cudaFree(nullptr));
                set_visible_devices({0});
                return std::string("accepted");
              }),
              HasSubstr("other code of this process has already initialised CUDA"));
}

// D6
TEST(LogicalDevicesOnGpus, AnIdThatIsNotThereIsNamedWithPhysicalNumbers) {
  auto const ask_for_two = [] { return text(logical_device({DeviceKind::cuda, DeviceIndex{1}}).uuid); };
  PhysicalGpu const& last = gpus().back();
  EXPECT_THAT(in_child(ask_for_two, last.uuid.value),
              ::testing::StartsWith(text("threw: invalid device id 1: CUDA_VISIBLE_DEVICES=", last.uuid,
                                         " leaves 1 logical device (cuda:0 = physical ", last.index, ")")));
}

// D1, D9
TEST(DeviceMapOnGpus, SaysBeforeCudaStartsWhatCudaSaysAfterwards) {
  if (has_mig()) GTEST_SKIP() << "a GPU is cut into MIG instances";
  std::vector<Variable> lists{std::nullopt, "0"};
  if (gpus().size() > 1) lists.emplace_back(text(gpus().back().uuid, ",", gpus().front().uuid));
  auto const compare = [] {
    set_logical_devices({.physical = 0, .limits = {1_GiB, 1_GiB}});
    DeviceMap const map = device_map();
    if (cuda_is_initialized()) return std::string("CUDA was started for the map");
    auto const all = list_logical_devices(DeviceKind::cuda);
    for (std::size_t i = 0; i < all.size(); ++i) {
      LogicalDevice const& row = map.logical.at(i);
      if (row.device != all[i].device || row.uuid != all[i].uuid || row.limit != all[i].limit ||
          row.slice != all[i].slice || row.visible != all[i].visible) {
        return text("row ", i, " differs:\n", to_text(map));
      }
    }
    auto const gpus_seen = static_cast<std::size_t>(all.back().visible.value()) + 1;
    return text(map.logical.size() - all.size(), " CPU, ", all.size() - gpus_seen, " more than GPUs");
  };
  for (Variable const& visible : lists) EXPECT_EQ(in_child(compare, visible), "1 CPU, 1 more than GPUs");
}

// D11
TEST(DeviceScopeOnGpus, IsWhereMemoryIsMade) {
  EXPECT_EQ(in_child([] {
              set_logical_devices({.physical = 0, .limits = {std::nullopt, std::nullopt}});
              DeviceScope const scope("/gpu:1");
              Tensor const inside = zeros(Shape{4}, DType::f32);
              cudaPointerAttributes attributes{};
              if (cudaPointerGetAttributes(&attributes, inside.view().data) != cudaSuccess) {
                return std::string("no attributes");
              }
              return text(inside.view().device, ' ',
                          attributes.type == cudaMemoryTypeDevice ? "device" : "host");
            }),
            "cuda:1 device");
}

}  // namespace
}  // namespace ddp::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (ddp::testing::gpus().empty()) {  // CUDA must not be asked here
    std::puts("skipped: the driver lists no GPU here");
    return 69;
  }
  return RUN_ALL_TESTS();
}

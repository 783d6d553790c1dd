// D1, D3: the table of devices, as text and as JSON.
#include "ddp/device/device_map.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "device/registry/device_registry.hpp"
#include "device/registry/map_devices.hpp"

namespace ddp::testing {
namespace {

using Limits = std::vector<std::optional<Bytes>>;

std::string uuid(char letter) { return "GPU-" + std::string(8, letter) + "-0000-0000-0000-000000000000"; }

PhysicalGpu gpu(int index) {
  PhysicalGpu each;
  each.index = PhysicalIndex{index};
  each.uuid = {uuid(static_cast<char>('a' + index))};
  each.name = "NVIDIA H200";
  each.pci_bus_id = "0000:0" + std::to_string(index) + ":00.0";
  each.compute_major = 9;
  each.memory =
      MemoryInfo{Bytes{std::size_t{1277} << 27}, Bytes{std::size_t{1398} << 27}};  // 159.6 of 174.8 GiB
  return each;
}

std::vector<PhysicalGpu> const kFour{gpu(0), gpu(1), gpu(2), gpu(3)};

TEST(DeviceMap, HasALineForEachDevice) {
  std::vector<PhysicalGpu> gpus = kFour;
  gpus[2].compute_processes = {4711, 4712};
  gpus[0].memory.reset();
  DeviceMap const map = map_devices(
      gpus, std::vector<GpuId>{{uuid('d')}, {uuid('c')}, {uuid('a')}}, [](GpuId const&) { return Limits(1); },
      Limits(1));
  EXPECT_EQ(to_text(map),
            "cuda:0 -> physical 3: NVIDIA H200, pci 0000:03:00.0, sm_90, 174.8 GiB (15.1 used), uuid " +
                uuid('d') +
                "\ncuda:1 -> physical 2: NVIDIA H200, pci 0000:02:00.0, sm_90, 174.8 GiB (15.1 used), uuid " +
                uuid('c') +
                ", in use by pid 4711, 4712\ncuda:2 -> physical 0: NVIDIA H200, pci 0000:00:00.0, sm_90, "
                "memory unknown, uuid " +
                uuid('a') +
                "\ncpu:0 -> CPU\nhidden -> physical 1: NVIDIA H200, pci 0000:01:00.0, sm_90, 174.8 GiB (15.1 "
                "used), uuid " +
                uuid('b') + "\n");
}

// D9
TEST(DeviceMap, ShowsVirtualDevicesAndTheirLimits) {
  auto const limits_of = [](GpuId const& id) {
    return id == uuid('b') ? Limits{1_GiB, std::nullopt} : Limits(1);
  };
  DeviceMap const map =
      map_devices(kFour, std::vector<GpuId>{{uuid('b')}, {uuid('a')}}, limits_of, Limits(2));
  ASSERT_EQ(map.logical.size(), 5U);
  EXPECT_EQ(map.logical[2].visible, 1);
  EXPECT_EQ(map.logical[2].device, (Device{DeviceKind::cuda, DeviceIndex{2}}));
  EXPECT_EQ(map.gpus.size(), 4U);
  EXPECT_THAT(to_text(map),
              ::testing::ContainsRegex("^cuda:0 -> physical 1, virtual 0 of 2, at most 1 GiB: NVIDIA .*\n"
                                       "cuda:1 -> physical 1, virtual 1 of 2: .*\ncuda:2 -> physical 0: .*\n"
                                       "cpu:0 -> CPU, virtual 0 of 2\ncpu:1 -> CPU, virtual 1 of 2\nhidden"));
  auto const json = nlohmann::json::parse(to_json(map));
  EXPECT_EQ(json["logical"].size(), 5U);
  EXPECT_EQ(json["logical"][0]["device"], "cuda:0");
  EXPECT_EQ(json["logical"][0]["physical"], 1);
  EXPECT_EQ(json["logical"][0]["visible"], 0);
  EXPECT_EQ(json["logical"][0]["virtual"], 0);
  EXPECT_EQ(json["logical"][0]["limit"], (1_GiB).value);
  EXPECT_TRUE(json["logical"][1]["limit"].is_null());
  EXPECT_TRUE(json["logical"][2]["virtual"].is_null());
  EXPECT_EQ(json["logical"][2]["uuid"].get<std::string>(), uuid('a'));
  EXPECT_EQ(json["logical"][4]["device"], "cpu:1");
  EXPECT_EQ(json["hidden"][0]["physical"], 2);
}

TEST(DeviceMap, OfAMigInstanceIsItsMemoryAndItsGpusNumber) {
  PhysicalGpu split = gpu(0);
  split.mig_mode = true;
  split.mig = {{{"MIG-1"}, MemoryInfo{8_GiB, 16_GiB}}};
  DeviceMap const map = map_devices(
      std::vector{split}, std::vector<GpuId>{{"MIG-1"}}, [](GpuId const&) { return Limits(1); }, Limits(1));
  EXPECT_EQ(to_text(map),
            "cuda:0 -> physical 0: NVIDIA H200, pci 0000:00:00.0, sm_90, 16.0 GiB (8.0 used), uuid "
            "MIG-1\ncpu:0 -> CPU\n");
}

TEST(DeviceMap, OfATableIsWhatItsProcessWouldSee) {
  std::map<std::string, std::string> variables{{"CUDA_VISIBLE_DEVICES", "3,2"}};
  bool started = false;
  DeviceRegistry table(
      {.gpus = [] { return kFour; },
       .visible =
           [&] {
             started = true;
             return std::vector<LogicalDevice>{};
           },
       .cuda_in_use = [] { return false; },
       .get_variable = [&](char const* name) -> std::optional<std::string> {
         auto const found = variables.find(name);
         return found == variables.end() ? std::nullopt : std::optional(found->second);
       },
       .set_variable = [&](char const* name, std::string const& value) { variables[name] = value; }});
  table.set_logical({.physical = 1, .limits = {1_GiB, 1_GiB}});
  EXPECT_EQ(table.map().logical.size(), 4U);
  EXPECT_EQ(table.map().logical[1].uuid, uuid('c')) << "physical device 1 of this process is the driver's 2";
  table.set_visible(std::vector{1});
  DeviceMap const map = table.map();
  ASSERT_EQ(map.logical.size(), 3U);
  EXPECT_EQ(find_gpu(map.gpus, map.logical[1].uuid).value().gpu->index, 2);
  EXPECT_EQ(map.logical[1].limit, 1_GiB);
  EXPECT_EQ(nlohmann::json::parse(to_json(map))["hidden"].size(), 3U);
  EXPECT_FALSE(started) << "CUDA need not be asked";
}

TEST(DeviceMap, OfThisProcessHasACpu) {
  DeviceMap const map = device_map();
  ASSERT_FALSE(map.logical.empty());
  EXPECT_EQ(map.logical.back().device.kind, DeviceKind::cpu);
}

}  // namespace
}  // namespace ddp::testing

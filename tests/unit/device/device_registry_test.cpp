// What a process sees, over GPUs that are not there: D4, D6, D9, D16.
#include "device/registry/device_registry.hpp"

#include <gmock/gmock.h>

#include "ddp/core/text.hpp"
#include "device/info/api_call.hpp"
#include "device/registry/cuda_visible_devices.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Device gpu(int index) { return {DeviceKind::cuda, DeviceIndex{index}}; }

// A machine with H200s of 16 GiB, of which CUDA lists what the variable leaves when it is asked first.
class DeviceRegistries : public ::testing::Test {
 protected:
  explicit DeviceRegistries(int count = 4) {
    for (int i = 0; i < count; ++i) {
      PhysicalGpu each;
      each.index = PhysicalIndex{i};
      each.uuid = {"GPU-" + std::string(8, static_cast<char>('a' + i)) + "-0000-0000-0000-000000000000"};
      each.name = "NVIDIA H200";
      each.memory = MemoryInfo{16_GiB, 16_GiB};
      gpus_.push_back(each);
    }
  }

  DeviceSources sources() {
    return {.gpus = [this] { return gpus_; },
            .visible =
                [this] {
                  ++starts_of_cuda_;
                  std::vector<LogicalDevice> all;
                  for (GpuId const& id : visible_device_ids(get("CUDA_VISIBLE_DEVICES"), gpus_)) {
                    LogicalDevice each;
                    each.visible = static_cast<int>(all.size());
                    each.uuid = id;
                    each.name = "NVIDIA H200";
                    all.push_back(each);
                  }
                  return all;
                },
            .cuda_in_use = [this] { return foreign_cuda_; },
            .get_variable = [this](char const* name) { return get(name); },
            .set_variable = [this](char const* name, std::string const& value) { variables_[name] = value; }};
  }
  std::optional<std::string> get(char const* name) {
    auto const found = variables_.find(name);
    return found == variables_.end() ? std::nullopt : std::optional(found->second);
  }
  /// Numbers of the driver, in logical order: "2 2 0" if physical 2 is cut into two.
  std::vector<int> order() {
    std::vector<int> numbers;
    for (LogicalDevice const& each : table_.logical(DeviceKind::cuda)) {
      numbers.push_back(each.uuid.value[4] - 'a');
      EXPECT_EQ(each.device, gpu(static_cast<int>(numbers.size()) - 1));
    }
    return numbers;
  }

  std::vector<PhysicalGpu> gpus_;
  std::map<std::string, std::string> variables_;
  bool foreign_cuda_ = false;
  int starts_of_cuda_ = 0;
  DeviceRegistry table_{sources()};
};

// D16
TEST_F(DeviceRegistries, PhysicalDevicesAreWhatTheProcessInheritedInItsOrder) {
  variables_["CUDA_VISIBLE_DEVICES"] = "3,1";
  auto const all = table_.physical(DeviceKind::cuda);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].number, 0);
  EXPECT_EQ(all[0].gpu.value().index, 3);
  EXPECT_EQ(all[1].uuid, gpus_[1].uuid);
  ASSERT_EQ(table_.physical(DeviceKind::cpu).size(), 1U);
  EXPECT_EQ(starts_of_cuda_, 0);
  EXPECT_FALSE(table_.is_settled(DeviceKind::cuda));
}

// The first device of the list is the primary one.
TEST_F(DeviceRegistries, LogicalDevicesAreInTheOrderOfTheVariable) {
  variables_["CUDA_VISIBLE_DEVICES"] = "3,2,0,1";
  EXPECT_THAT(order(), ElementsAre(3, 2, 0, 1));
}

// D4
TEST_F(DeviceRegistries, SetVisibleDevicesOrdersAndHides) {
  table_.set_visible(std::vector{2, 1, 0});
  EXPECT_EQ(variables_["CUDA_VISIBLE_DEVICES"], text(gpus_[2].uuid, ",", gpus_[1].uuid, ",", gpus_[0].uuid));
  EXPECT_EQ(table_.physical(DeviceKind::cuda).size(), 4U) << "still what was inherited";
  EXPECT_THAT(order(), ElementsAre(2, 1, 0));
}

// D4
TEST_F(DeviceRegistries, SetVisibleDevicesCountsInWhatWasInheritedAlsoTheSecondTime) {
  variables_["CUDA_VISIBLE_DEVICES"] = "3,1,0";
  table_.set_visible(std::vector{2});
  table_.set_visible(std::vector{1, 0});
  EXPECT_THAT(order(), ElementsAre(1, 3));
}

// D4
TEST_F(DeviceRegistries, AnEmptyListLeavesNoGpu) {
  table_.set_visible({});
  EXPECT_EQ(variables_["CUDA_VISIBLE_DEVICES"], "");
  EXPECT_THAT(order(), IsEmpty());
}

// D4
TEST_F(DeviceRegistries, SetVisibleDevicesTooLateNamesOurOwnCall) {
  {
    ApiCall const outer("World::init()");
    ApiCall const inner("zeros()");
    static_cast<void>(table_.logical(DeviceKind::cuda));
  }
  auto const error = error_of<Error>([&] { table_.set_visible(std::vector{2, 1, 0}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_STREQ(
      error.what(),
      "set_visible_devices({2,1,0}) comes too late: World::init() has already settled which GPU devices "
      "this process has; move the line before the first World::init(), best to the start of main()");
  EXPECT_FALSE(variables_.contains("CUDA_VISIBLE_DEVICES")) << "nothing has changed";
}

// D4
TEST_F(DeviceRegistries, SetVisibleDevicesTooLateForOtherCodesCudaSaysSo) {
  foreign_cuda_ = true;
  auto const error = error_of<Error>([&] { table_.set_visible(std::vector{0}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("other code of this process has already initialised CUDA"));
  EXPECT_THAT(error.what(), HasSubstr("best to the start of main()"));
  EXPECT_THROW(table_.set_logical({.physical = 0, .limits = {1_GiB}}), Error);
}

// D4
TEST_F(DeviceRegistries, ABadListIsRefusedWholeWithTheEntryAndItsPosition) {
  variables_["CUDA_VISIBLE_DEVICES"] = "0,1";
  struct Case {
    std::vector<int> numbers;
    char const* expected;
  };
  for (Case const& bad : std::vector<Case>{
           {{1, 2},
            "set_visible_devices({1,2}): entry 2, 2, is no physical device: this process was started with 2 "
            "GPUs (0 = NVIDIA H200, 1 = NVIDIA H200)"},
           {{-1}, "set_visible_devices({-1}): entry 1, -1, is no physical device"},
           {{0, 1, 0}, "set_visible_devices({0,1,0}): entry 3, 0, stands there twice"}}) {
    EXPECT_THAT(message_of([&] { table_.set_visible(bad.numbers); }), HasSubstr(bad.expected));
    EXPECT_EQ(variables_["CUDA_VISIBLE_DEVICES"], "0,1");
  }
  EXPECT_THAT(order(), ElementsAre(0, 1));
}

// D9: 2 physical GPUs, 3 logical GPUs.
TEST_F(DeviceRegistries, AGpuIsCutIntoVirtualOnesWithLimits) {
  variables_["CUDA_VISIBLE_DEVICES"] = "0,1";
  table_.set_logical({.physical = 0, .limits = {1_GiB, 2_GiB}});
  EXPECT_EQ(table_.physical(DeviceKind::cuda).size(), 2U);
  EXPECT_THAT(order(), ElementsAre(0, 0, 1));
  auto const all = table_.logical(DeviceKind::cuda);
  EXPECT_EQ(all[0].limit, 1_GiB);
  EXPECT_EQ(all[1].limit, 2_GiB);
  EXPECT_EQ(all[1].slice, 1);
  EXPECT_EQ(all[2].limit, std::nullopt);
  EXPECT_EQ(all[2].visible, 1);
}

// D9: streams of slices that share a queue to the GPU would wait for each other
TEST_F(DeviceRegistries, ACutGpuGetsAsManyQueuesAsThereAre) {
  variables_["DDP_VIRTUAL_DEVICES"] = "2";
  static_cast<void>(order());
  EXPECT_EQ(get("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

TEST_F(DeviceRegistries, AWholeGpuGetsTheQueuesThatCudaGivesIt) {
  static_cast<void>(order());
  EXPECT_EQ(get("CUDA_DEVICE_MAX_CONNECTIONS"), std::nullopt);
}

// D9
TEST_F(DeviceRegistries, CutsAreCountedAsInheritedWhateverTheOrder) {
  table_.set_logical({.physical = 1, .limits = {1_GiB, 1_GiB}});
  table_.set_visible(std::vector{3, 1});
  EXPECT_THAT(order(), ElementsAre(3, 1, 1));
}

// D9
TEST_F(DeviceRegistries, BadAndContradictoryCutsAreRefusedAndChangeNothing) {
  struct Case {
    VirtualDevices cut;
    char const* expected;
  };
  for (Case const& bad : std::vector<Case>{
           {{.physical = 4, .limits = {1_GiB}},
            "set_logical_devices() of cuda 4: there is no such physical device: this process was started "
            "with 4 GPUs"},
           {{.physical = -1, .limits = {1_GiB}}, "there is no such physical device"},
           {{.kind = DeviceKind::cpu, .physical = 1, .limits = {1_GiB}}, "started with 1 CPU (0 = CPU)"},
           {{.physical = 0}, "expected 1 to 1024 limits"},
           {{.physical = 0, .limits = {1_GiB, 0_B}}, "limit 2 is 0 B"},
           {{.physical = 0, .limits = {10_GiB, 10_GiB}},
            "the limits are 20 GiB together, and the card has 16 GiB"}}) {
    EXPECT_THAT(message_of([&] { table_.set_logical(bad.cut); }), HasSubstr(bad.expected));
  }
  table_.set_logical({.physical = 1, .limits = {1_GiB, 1_GiB}});
  EXPECT_THAT(
      message_of([&] {
        table_.set_visible(std::vector{0, 2});
      }),
      HasSubstr("hides physical device 1, which set_logical_devices() has made 2 logical devices of"));
  table_.set_visible(std::vector{1});
  EXPECT_THAT(message_of([&] { table_.set_logical({.physical = 2, .limits = {1_GiB}}); }),
              HasSubstr("set_visible_devices({1}) hides that device"));
  EXPECT_THAT(order(), ElementsAre(1, 1));
}

// D9
TEST_F(DeviceRegistries, TheVariableCutsEveryGpuThatCodeDoesNotCut) {
  variables_["DDP_VIRTUAL_DEVICES"] = "2";
  variables_["CUDA_VISIBLE_DEVICES"] = "0,1";
  table_.set_logical({.physical = 1, .limits = {1_GiB, 1_GiB, 1_GiB}});
  EXPECT_THAT(order(), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_EQ(table_.logical(DeviceKind::cpu).size(), 1U) << "where there are GPUs it is not for the CPU";
}

// D9
TEST_F(DeviceRegistries, TheVariableCutsTheCpuWhereThereIsNoGpu) {
  variables_["DDP_VIRTUAL_DEVICES"] = "3";
  variables_["CUDA_VISIBLE_DEVICES"] = "";
  auto const all = table_.logical(DeviceKind::cpu);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[2].device, (Device{DeviceKind::cpu, DeviceIndex{2}}));
  for (char const* bad : {"", "0", "-1", "2x", "1025", "two"}) {
    variables_["DDP_VIRTUAL_DEVICES"] = bad;
    DeviceRegistry other(sources());
    EXPECT_THAT(message_of([&] { static_cast<void>(other.logical(DeviceKind::cpu)); }),
                HasSubstr("DDP_VIRTUAL_DEVICES="))
        << bad;
  }
}

// D6, word for word.
TEST_F(DeviceRegistries, AnIdThatIsNotThereIsNamedWithWhatTheVariableLeaves) {
  variables_["CUDA_VISIBLE_DEVICES"] = "0,1";
  auto const error = error_of<Error>([&] { static_cast<void>(table_.at(gpu(2))); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_STREQ(
      error.what(),
      "invalid device id 2: CUDA_VISIBLE_DEVICES=0,1 leaves 2 logical devices (cuda:0 = physical 0, cuda:1 "
      "= physical 1)");
  EXPECT_THAT(message_of([&] { static_cast<void>(table_.at(gpu(-1))); }),
              HasSubstr("invalid device id -1: "));
}

// D6
TEST_F(DeviceRegistries, PhysicalNumbersThatWereMeantAreTranslated) {
  variables_["CUDA_VISIBLE_DEVICES"] = "1,2";
  std::string const visible =
      "invalid device id 2: CUDA_VISIBLE_DEVICES=1,2 leaves 2 logical devices (cuda:0 = physical 1, cuda:1 = "
      "physical 2)";
  EXPECT_EQ(message_of([&] {
              table_.require(std::vector{gpu(1), gpu(2)});
            }),
            visible + "; the physical devices 1 and 2 are cuda:0 and cuda:1");
  EXPECT_EQ(message_of([&] { table_.require(std::vector{gpu(2)}); }),
            visible + "; the physical device 2 is cuda:1");
  EXPECT_EQ(message_of([&] {
              table_.require(std::vector{gpu(0), gpu(2)});
            }),
            visible)
      << "physical 0 is not visible: that was not meant";
  table_.require(std::vector{gpu(0), gpu(1)});
}

// D6
TEST_F(DeviceRegistries, WithoutTheVariableAndAfterOurOwnCallTheReasonIsAnother) {
  EXPECT_EQ(message_of([&] { static_cast<void>(table_.at(gpu(4))); }),
            "invalid device id 4: CUDA_VISIBLE_DEVICES is not set, which leaves 4 logical devices (cuda:0 = "
            "physical "
            "0, cuda:1 = physical 1, cuda:2 = physical 2, cuda:3 = physical 3)");
  DeviceRegistry chosen(sources());
  chosen.set_visible(std::vector{3});
  EXPECT_EQ(
      message_of([&] { static_cast<void>(chosen.at(gpu(3))); }),
      "invalid device id 3: set_visible_devices({3}) leaves 1 logical device (cuda:0 = physical 3); the "
      "physical device 3 is cuda:0");
}

// D6
TEST_F(DeviceRegistries, WhereCudaShowsNoneItsReasonIsNamed) {
  auto none = sources();
  none.visible = [] { return std::vector<LogicalDevice>{}; };
  none.why_none = [] { return std::string("the driver is too old"); };
  DeviceRegistry table(none);
  std::string const said = message_of([&] { static_cast<void>(table.at(gpu(0))); });
  if (is_built_with_cuda()) {
    EXPECT_EQ(
        said,
        "invalid device id 0: CUDA_VISIBLE_DEVICES is not set, which leaves 0 logical devices (the driver is "
        "too old); ddp-launch --list-devices shows what is there");
  } else {
    EXPECT_THAT(said, HasSubstr("this build of ddp has no CUDA"));
  }
}

// D6
TEST_F(DeviceRegistries, WithoutADriversListDevicesAreNamedByWhatCudaTells) {
  auto from_cuda_alone = sources();
  from_cuda_alone.gpus = [] { return std::vector<PhysicalGpu>{}; };
  DeviceRegistry table(from_cuda_alone);
  EXPECT_THAT(message_of([&] { static_cast<void>(table.at(gpu(9))); }), HasSubstr("(cuda:0 = NVIDIA H200 "));
}

TEST_F(DeviceRegistries, ACpuAloneDoesNotStartCuda) {
  EXPECT_EQ(table_.logical(DeviceKind::cpu).size(), 1U);
  EXPECT_EQ(starts_of_cuda_, 0);
}

}  // namespace
}  // namespace ddp::testing

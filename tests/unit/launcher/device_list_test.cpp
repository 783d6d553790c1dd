#include "launcher/plan/device_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two GPUs as a driver lists them. The expectations of CudaVisibleDevices below were taken from CUDA itself:
// cuDeviceGetCount and cuDeviceGetUuid under each value, driver of CUDA 13.0, two H200.
std::string const kA = "GPU-27ae3a54-1236-c29e-e3a3-f1d170f18334";
std::string const kB = "GPU-0e153505-8466-b46e-c83c-8251dbfbcacd";
std::vector<PhysicalGpu> const kGpus{{{kA}, "NVIDIA H200"}, {{kB}, "NVIDIA H200"}};

/// "0 1" for {kA, kB}.
std::string logical_order(std::string const& value) {
  std::vector<std::string> places;
  for (GpuId const& uuid : read_cuda_visible_devices(value, kGpus)) {
    places.emplace_back(uuid == kA ? "0" : uuid == kB ? "1" : uuid.value);
  }
  return join(places, " ");
}

struct Reading {
  std::string value;
  char const* order;
};

TEST(CudaVisibleDevices, UnsetLeavesAllInPhysicalOrder) {
  EXPECT_THAT(read_cuda_visible_devices(std::nullopt, kGpus), ElementsAre(kA, kB));
  EXPECT_TRUE(read_cuda_visible_devices(std::nullopt, {}).empty()) << "no GPU is a normal answer";
}

TEST(CudaVisibleDevices, IndicesAreReadAsCudaReadsThem) {
  for (Reading const& reading : std::vector<Reading>{{"", ""},
                                                     {"0", "0"},
                                                     {"1", "1"},
                                                     {"1,0", "1 0"},
                                                     {"0,1", "0 1"},
                                                     {"0,0", ""},
                                                     {"0,1,0", ""},
                                                     {"0,5,1", "0"},
                                                     {"-1", ""},
                                                     {"0,-1,1", "0"},
                                                     {" 0", "0"},
                                                     {"0 ", "0"},
                                                     {" 0 , 1 ", "0 1"},
                                                     {"\t1", "1"},
                                                     {"0,\t1", "0 1"},
                                                     {"\n1", "1"},
                                                     {"0;1", "0"},
                                                     {"0 1", "0"},
                                                     {"0x", "0"},
                                                     {"0x1", "0"},
                                                     {"1x,0", "1 0"},
                                                     {"+1", "1"},
                                                     {"+0,1", "0 1"},
                                                     {"01", "1"},
                                                     {"1.0", "1"},
                                                     {"0,,1", "0"},
                                                     {",0", ""},
                                                     {"0,", "0"},
                                                     {"all", ""},
                                                     {"none", ""},
                                                     {"NoDevFiles", ""},
                                                     {"\"0\"", ""},
                                                     {"'0'", ""},
                                                     {"\"0,1\"", ""},
                                                     {" ", ""},
                                                     {"  ,0", ""},
                                                     {"4294967296", "0"},
                                                     {"4294967297", "1"},
                                                     {"2147483648,1", ""},
                                                     {"-0", "0"},
                                                     {"0,-0", ""},
                                                     {"99999999999999", ""},
                                                     {"18446744073709551616", ""},
                                                     {"-4294967295", "1"},
                                                     {"0,0,9", ""},
                                                     {"0,1,9,1", "0 1"},
                                                     {"0,1,1,5", ""},
                                                     {"1,,1", "1"},
                                                     {"-1,0,0", ""}}) {
    EXPECT_EQ(logical_order(reading.value), reading.order)
        << "CUDA_VISIBLE_DEVICES=\"" << reading.value << '"';
  }
}

TEST(CudaVisibleDevices, UuidsAreReadAsCudaReadsThem) {
  std::string const digits_of_a = "27ae3a541236c29ee3a3f1d170f18334";
  for (Reading const& reading :
       std::vector<Reading>{{kA, "0"},
                            {kB + "," + kA, "1 0"},
                            {kA + "," + kA, ""},
                            {kB + "," + kA + "," + kB, ""},
                            {"GPU-27AE3A54-1236-C29E-E3A3-F1D170F18334", "0"},
                            {"gpu-27ae3a54-1236-c29e-e3a3-f1d170f18334", ""},
                            {"GPU-27ae3a54", "0"},
                            {"GPU-2", "0"},
                            {"GPU-27ae3a54-", "0"},
                            {"GPU-" + digits_of_a, "0"},
                            {"GPU-27ae3a541236", "0"},
                            {"GPU-27ae3a54-zz", ""},
                            {"GPU-27ae ", ""},
                            {"GPU-27aex," + kB, ""},
                            {"GPU-", ""},
                            {"GPU", ""},
                            {digits_of_a, ""},
                            {kA + " ", "0"},
                            {" " + kA, ""},
                            {kA + "junk," + kB, "0 1"},
                            {kA + ", " + kB, "0"},
                            {kA + " ," + kB, "0 1"},
                            {kA + ",GPU-ffffffff," + kB, "0"},
                            {"GPU-27ae,GPU-27ae3", ""},
                            {"GPU-27ae,GPU-", "0"},
                            {kA + ",-1", "0"},
                            {"," + kA, ""},
                            {"MIG-27ae3a54-1236-c29e-e3a3-f1d170f18334", "0"},
                            {kB + ",MIG-0e153505-8466-b46e-c83c-8251dbfbcacd", ""}}) {
    EXPECT_EQ(logical_order(reading.value), reading.order)
        << "CUDA_VISIBLE_DEVICES=\"" << reading.value << '"';
  }
}

TEST(CudaVisibleDevices, TheFirstEntryDecidesHowAllAreRead) {
  EXPECT_EQ(logical_order("0," + kB), "0");
  EXPECT_EQ(logical_order(kB + ",0"), "1");
}

TEST(CudaVisibleDevices, AMigInstanceIsFoundByItsId) {
  std::string const id = "MIG-41b3aa00-0000-0000-0000-000000000001";
  std::vector<PhysicalGpu> const split{{.uuid = {kA}, .mig = {{{id}}}}};
  EXPECT_THAT(read_cuda_visible_devices("MIG-41b3", split), ElementsAre(id));
}

TEST(CudaVisibleDevices, APrefixWithoutDigitsNamesNothingEvenWhereThereIsOneGpu) {
  std::vector<PhysicalGpu> const one{{.uuid = {kA}}};
  EXPECT_THAT(read_cuda_visible_devices("GPU-2", one), ElementsAre(kA));
  for (char const* bare : {"GPU-", "GPU--", "MIG-"}) {
    EXPECT_THAT(read_cuda_visible_devices(bare, one), IsEmpty()) << bare;
  }
}

TEST(CudaVisibleDevices, EntriesThatDoNotCountAreSaidUnlessTheyHideOnPurpose) {
  for (char const* plain : {"0,1", "0", "", "-1", "0,-1", "0,-1,1", "NoDevFiles"}) {
    auto const visible = read_cuda_visible_devices(plain, kGpus);
    EXPECT_EQ(oddity(plain, visible.size()), std::nullopt) << plain;
  }
  for (char const* odd : {"0,5,1", "0,0", "all", "\"0\"", "0,"}) {
    auto const visible = read_cuda_visible_devices(odd, kGpus);
    EXPECT_THAT(oddity(odd, visible.size()).value_or("nothing"), HasSubstr(odd));
  }
  EXPECT_EQ(oddity("all", 0), "CUDA_VISIBLE_DEVICES=all leaves 0 GPUs of its 1 entry, which is no device");
}

std::vector<GpuId> const kVisible{{kB}, {kA}};  // CUDA_VISIBLE_DEVICES=1,0

TEST(GpuList, IndicesCountTheInheritedListAndKeepTheirOrder) {
  EXPECT_THAT(select_gpus("0", kVisible, "1,0"), ElementsAre(kB));
  EXPECT_THAT(select_gpus("1,0", kVisible, "1,0"), ElementsAre(kA, kB));
  EXPECT_THAT(select_gpus(" 1 , 0 ", kVisible, "1,0"), ElementsAre(kA, kB));
  EXPECT_EQ(select_gpus("all", kVisible, "1,0"), kVisible);
}

TEST(GpuList, UuidsAndTheirUniqueBeginningsAreAccepted) {
  EXPECT_THAT(select_gpus(kA, kVisible, {}), ElementsAre(kA));
  EXPECT_THAT(select_gpus("GPU-27AE,0", kVisible, {}), ElementsAre(kA, kB));
  std::vector<GpuId> const mig{{"MIG-41b3aa00-0000-0000-0000-000000000001"},
                               {"MIG-41b3aa00-0000-0000-0000-000000000002"}};
  EXPECT_THAT(select_gpus(mig[1].value, mig, {}), ElementsAre(mig[1]));
}

struct BadList {
  std::string list;
  int exit_code;
  char const* named;
};

TEST(GpuList, BadListsAreRefusedWholeNamingTheEntry) {
  for (BadList const& bad : std::vector<BadList>{{"-1", 64, "entry 1, \"-1\""},
                                                 {"0,-1,1", 64, "entry 2, \"-1\""},
                                                 {"0,0", 64, "entry 2, \"0\", names a device a second time"},
                                                 {"0,1,0", 64, "entry 3"},
                                                 {"0," + kB, 64, "a second time"},
                                                 {"", 64, "entry 1, \"\""},
                                                 {"0,,1", 64, "entry 2, \"\""},
                                                 {"0,", 64, "entry 2, \"\""},
                                                 {"0;1", 64, "\"0;1\""},
                                                 {"0x1", 64, "\"0x1\""},
                                                 {"+1", 64, "\"+1\""},
                                                 {"1.0", 64, "\"1.0\""},
                                                 {"cuda:0", 64, "\"cuda:0\""},
                                                 {"all,0", 64, "\"all\""},
                                                 {"GPU-", 64, "no UUID"},
                                                 {"GPU-xyz", 64, "no UUID"},
                                                 {kA + "junk", 64, "no UUID"},
                                                 {"MIG-GPU-27ae/1/0", 64, "no UUID"},
                                                 {"./train", 64, "\"./train\""},
                                                 {"99", 69, "no device 99"},
                                                 {"0,2", 69, "no device 2"},
                                                 {"2,3", 69, "no device 2, 3"},
                                                 {"99999999999999999999", 69, "no device 9999"},
                                                 {"GPU-ffffffff", 69, "no device GPU-ffffffff"},
                                                 {"MIG-27ae3a54", 69, "no device MIG-27ae3a54"}}) {
    try {
      static_cast<void>(select_gpus(bad.list, kVisible, "1,0"));
      ADD_FAILURE() << "--gpus " << bad.list << " was accepted";
    } catch (ExitError const& error) {
      EXPECT_EQ(error.exit_code(), bad.exit_code) << bad.list;
      EXPECT_THAT(error.what(), HasSubstr(bad.named)) << bad.list;
      EXPECT_THAT(error.what(), HasSubstr("CUDA_VISIBLE_DEVICES=1,0 leaves 2 GPUs (0 = " + kB)) << bad.list;
    }
  }
}

TEST(GpuList, SeveralMatchesOfABeginningAreRefused) {
  std::vector<GpuId> const alike{{"GPU-aa000000-0000-0000-0000-000000000001"},
                                 {"GPU-aa000000-0000-0000-0000-000000000002"}};
  EXPECT_THROW(static_cast<void>(select_gpus("GPU-aa", alike, {})), ExitError);
}

TEST(GpuList, WithoutAGpuEverythingWellFormedIsExit69) {
  for (char const* list : {"0", "all", "GPU-27ae", "0,1"}) {
    try {
      static_cast<void>(select_gpus(list, {}, std::nullopt));
      ADD_FAILURE() << list;
    } catch (ExitError const& error) {
      EXPECT_EQ(error.exit_code(), 69) << list;
      EXPECT_THAT(error.what(), HasSubstr("no GPU is visible")) << list;
    }
  }
}

}  // namespace
}  // namespace ddp::launcher

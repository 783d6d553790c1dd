#include "launcher/plan/cores.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Shares = std::vector<std::vector<int>>;

/// A folder of the form of /sys: two nodes of four cores with two threads each; threads of a core are eight
/// apart.
class FakeSys : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "ddp-sys-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    sys_ = name;
    write("devices/system/node/node0/cpulist", "0-3,8-11");
    write("devices/system/node/node1/cpulist", "4-7,12-15");
    write("devices/system/node/possible", "0-1");
    for (int cpu = 0; cpu < 16; ++cpu) {
      std::string const core = std::to_string(cpu % 8);
      write("devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
            core + "," + std::to_string(cpu % 8 + 8));
    }
    write("bus/pci/devices/0000:06:00.0/numa_node", "1");
    write("bus/pci/devices/0000:07:00.0/numa_node", "-1");
  }
  void TearDown() override { std::filesystem::remove_all(sys_); }
  void write(std::string const& path, std::string const& text) {
    std::filesystem::path const file = std::filesystem::path(sys_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  std::string sys_;
};

std::vector<int> up_to(int end) {
  std::vector<int> numbers(static_cast<std::size_t>(end));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

CoreDemand gpu_near(std::optional<int> node) { return {true, node}; }

TEST_F(FakeSys, TellsNodeAndCoreOfEachAllowedCpu) {
  auto const cpus = read_cpus(std::vector<int>{1, 9, 12}, sys_);
  EXPECT_THAT(cpus, ElementsAre(Cpu{1, 1, 0}, Cpu{9, 1, 0}, Cpu{12, 4, 1}));
  EXPECT_EQ(node_of_device("0000:06:00.0", sys_), 1);
  EXPECT_EQ(node_of_device("0000:07:00.0", sys_), std::nullopt);
  EXPECT_EQ(node_of_device("0000:08:00.0", sys_), std::nullopt);
  EXPECT_EQ(node_of_device("", sys_), std::nullopt);
}

TEST_F(FakeSys, MachineThatTellsNothingHasOneNode) {
  EXPECT_THAT(read_cpus(std::vector<int>{3, 5}, sys_ + "/nothing"), ElementsAre(Cpu{3, 3, 0}, Cpu{5, 5, 0}));
}

TEST_F(FakeSys, GpuRanksShareWholeCoresOfTheirNode) {
  auto const cpus = read_cpus(up_to(16), sys_);
  std::vector<CoreDemand> const ranks{gpu_near(0), gpu_near(0), gpu_near(1)};
  EXPECT_EQ(share_cores(cpus, ranks), (Shares{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}));
}

TEST_F(FakeSys, OnlyAllowedCpusAreGiven) {
  auto const cpus = read_cpus(std::vector<int>{0, 2, 10, 5}, sys_);
  std::vector<CoreDemand> const ranks{gpu_near(0), gpu_near(0), gpu_near(1)};
  EXPECT_EQ(share_cores(cpus, ranks), (Shares{{0}, {2, 10}, {5}}));
}

TEST_F(FakeSys, MoreRanksThanCoresAllGetTheNode) {
  auto const cpus = read_cpus(std::vector<int>{0, 8, 4}, sys_);
  std::vector<CoreDemand> const ranks{gpu_near(0), gpu_near(0), gpu_near(1)};
  EXPECT_EQ(share_cores(cpus, ranks), (Shares{{0, 8}, {0, 8}, {4}}));
}

TEST_F(FakeSys, UnknownNodeLeavesTheRankFreeUnlessThereIsOneNodeOnly) {
  std::vector<CoreDemand> const ranks{gpu_near(std::nullopt), gpu_near(7), gpu_near(1)};
  EXPECT_EQ(share_cores(read_cpus(up_to(16), sys_), ranks), (Shares{{}, {}, {4, 5, 6, 7, 12, 13, 14, 15}}));
  std::vector<Cpu> const one_node{{0, 0, 0}, {1, 1, 0}, {2, 2, 0}};
  EXPECT_EQ(share_cores(one_node, ranks), (Shares{{0}, {1}, {2}}));
}

TEST_F(FakeSys, CpuRanksAreSpreadOverNodesAndFreeOnOne) {
  auto const cpus = read_cpus(up_to(16), sys_);
  std::vector<int> const first{0, 1, 2, 3, 8, 9, 10, 11};
  std::vector<int> const second{4, 5, 6, 7, 12, 13, 14, 15};
  EXPECT_EQ(share_cores(cpus, std::vector<CoreDemand>(4)), (Shares{first, first, second, second}));
  EXPECT_EQ(share_cores(std::vector<Cpu>{{0, 0, 0}, {1, 1, 0}}, std::vector<CoreDemand>(2)),
            (Shares{{}, {}}));
  EXPECT_THAT(share_cores({}, std::vector<CoreDemand>(1)), ElementsAre(IsEmpty()));
}

// L11
TEST(CpuMask, KeepsAThreadOnItsCpus) {
  auto const allowed = [] {
    std::string line;
    for (std::ifstream status("/proc/thread-self/status"); std::getline(status, line);) {
      if (line.starts_with("Cpus_allowed_list:\t")) return line.substr(line.find('\t') + 1);
    }
    return line;
  };
  std::string const before = allowed();
  int const last = parse_cpu_list(before).value().back();
  std::thread([&] {
    stay_on(cpu_mask({}));
    EXPECT_EQ(allowed(), before) << "an empty mask changes nothing";
    stay_on(cpu_mask(std::array{last}));
    EXPECT_EQ(allowed(), std::to_string(last));
  }).join();
  EXPECT_EQ(allowed(), before) << "of another thread";
}

TEST(CpuList, ReadsAndWritesTheKernelsForm) {
  EXPECT_EQ(cpu_list(std::vector<int>{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
  for (char const* wrong : {"-1", "3-1", "1,", ",1", "a", "1-", "1 2", "0-99999999", "99999999999"}) {
    EXPECT_EQ(parse_cpu_list(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace ddp::launcher

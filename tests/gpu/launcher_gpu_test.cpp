// ddp-launch and the inventory on a machine with GPUs, beside what nvidia-smi and CUDA say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <thread>

#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/inventory.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/stream.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// Lines of nvidia-smi's answer; nullopt where the program is not there.
std::optional<Words> nvidia_smi(std::string const& query) {
  TemporaryFolder const folder;
  ShellOutcome const outcome =
      run_shell(folder.path(), "nvidia-smi " + query + " --format=csv,noheader,nounits");
  if (outcome.exit_code != 0) return std::nullopt;
  return lines(outcome.out);
}

Inventory const& inventory() {
  static Inventory const read = read_inventory();
  return read;
}

// D3
TEST(InventoryOnGpus, IsWhatNvidiaSmiSays) {
  auto const lines = nvidia_smi("--query-gpu=uuid,name,pci.bus_id,memory.total,compute_cap,driver_version");
  if (!lines) GTEST_SKIP() << "nvidia-smi does not answer here";
  EXPECT_EQ(inventory().problem, "");
  ASSERT_EQ(inventory().gpus.size(), lines->size());
  for (std::size_t i = 0; i < lines->size(); ++i) {
    PhysicalGpu const& gpu = inventory().gpus[i];
    ASSERT_TRUE(gpu.memory);
    EXPECT_LE(gpu.memory->free, gpu.memory->total);
    // Its bus ids have 8 digits of the domain, and upper case.
    EXPECT_EQ(lower((*lines)[i]), lower(text(gpu.uuid, ", ", gpu.name, ", 0000", gpu.pci_bus_id, ", ",
                                             gpu.memory->total.value >> 20, ", ", gpu.compute_major, ".",
                                             gpu.compute_minor, ", ", inventory().driver_version)));
  }
}

// D3
TEST(InventoryOnGpus, HoldsEveryDeviceThatCudaSees) {
  for (LogicalDevice const& device : logical_devices()) {
    auto const found = find_gpu(inventory().gpus, device.uuid);
    ASSERT_TRUE(found) << device.uuid;
    EXPECT_EQ(found->gpu->name, device.name);
    EXPECT_EQ(found->gpu->pci_bus_id, lower(device.pci_bus_id));
  }
}

// L1, L2
TEST(LauncherOnGpus, EveryVisibleGpuGetsARankThatSeesAllOfThem) {
  LaunchedJob job(Words{"--no-log-files", "--", "/bin/sh", "-c", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES"});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  Words uuids;
  for (PhysicalGpu const& gpu : inventory().gpus) uuids.push_back(gpu.uuid.value);
  auto const lines = job.sorted_lines();
  ASSERT_EQ(lines.size(), uuids.size());
  for (std::size_t r = 0; r < std::min<std::size_t>(lines.size(), 10); ++r) {
    EXPECT_EQ(lines[r], text("[", r, "] ", r, " ", join(uuids, ",")));
  }
}

// L1, L2: what CUDA makes of it, in the ranks
TEST(LauncherOnGpus, CudaSeesTheChosenGpusInTheChosenOrder) {
  std::size_t const count = inventory().gpus.size();
  Words backwards;
  std::string seen;
  for (std::size_t i = 0; i < count; ++i) {
    backwards.push_back(std::to_string(count - 1 - i));
    seen += text("[0] cuda:", i, " = ", inventory().gpus[count - 1 - i].uuid, "\n");
  }
  LaunchedJob job(
      launched_rank_with({"--gpus", join(backwards, ","), "--only-rank", "0"}, {"*=list-devices"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), seen);
}

// L1
TEST(LauncherOnGpus, VirtualMakesOneGpuSeveralLogicalDevices) {
  LaunchedJob job(
      launched_rank_with({"--gpus", "0", "--virtual", "2", "--only-rank", "1"}, {"*=list-devices"}));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  GpuId const uuid = inventory().gpus.at(0).uuid;
  EXPECT_EQ(job.out(), text("[1] cuda:0 = ", uuid, "\n[1] cuda:1 = ", uuid, "\n"));
}

// L1
TEST(LauncherOnGpus, TheInheritedVariableLimitsAll) {
  LaunchedJob job(Words{"--gpus", "all", "--no-log-files", "--", "/bin/sh", "-c", "echo $WORLD_SIZE"},
                  {.environment = {"CUDA_VISIBLE_DEVICES=0"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(job.out(), "[0] 1\n");
}

/// Ranks of GPU 0 that make their World, each after `script` has changed its environment.
LaunchedJob worlds(int ranks, std::string const& script) {
  return LaunchedJob(Words{"--gpus", "0", "--virtual", std::to_string(ranks), "--no-log-files", "--",
                           "/bin/sh", "-c", script + "; exec " LAUNCHED_RANK " '*=world'"},
                     {.environment = {"DDP_LOG=info"}});
}

TEST(RanksOnGpus, SomeOnGpusAndSomeOnTheCpuAreRefusedOnEveryRank) {
  LaunchedJob job = worlds(2, "unset DDP_VIRTUAL_DEVICES; [ $RANK = 0 ] || export CUDA_VISIBLE_DEVICES=");
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "");
  for (char const* const rank : {"[0] ", "[1] "}) {
    EXPECT_THAT(job.err(),
                HasSubstr(text(rank, "ranks of one group need memory of GPUs, or all of the CPU")));
  }
  EXPECT_THAT(job.err(), HasSubstr("look at what CUDA_VISIBLE_DEVICES leaves"));
}

// L5: as srun --gpus-per-task=1 binds them, and as a mistake.
TEST(RanksOnGpus, ThatSeeOneGpuOnlyUseItAndAreToldThatTheyShareIt) {
  LaunchedJob job = worlds(2, "unset DDP_VIRTUAL_DEVICES");
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.sorted_lines(), ::testing::ElementsAre("[0] rank 0 of 2 on cuda:0, staged",
                                                         "[1] rank 1 of 2 on cuda:0, staged"));
  EXPECT_THAT(job.err(), HasSubstr("local rank 1 of 2 sees one GPU and uses it: cuda:0"));
  EXPECT_THAT(job.err(), HasSubstr("start one rank a GPU, or with ddp-launch --virtual"));
  LaunchedJob meant = worlds(2, ":");
  EXPECT_EQ(meant.exit_code(), 0) << meant.err();
  EXPECT_THAT(meant.err(), Not(HasSubstr("start one rank a GPU")));
}

TEST(RanksOnGpus, MoreThanGpusAreRefused) {
  LaunchedJob job = worlds(3, "export DDP_VIRTUAL_DEVICES=2");
  EXPECT_NE(job.exit_code(), 0);
  EXPECT_THAT(job.err(),
              HasSubstr("[2] no GPU for local rank 2: 3 ranks run on this host, and this one sees 2 "
                        "logical devices"));
}

// F14
TEST(LauncherOnGpus, F14BadListsAreRefusedBeforeAnythingStarts) {
  struct Case {
    char const* list;
    int exit_code;
  };
  for (Case const& each : {Case{"-1", 64}, Case{"0,0", 64}, Case{"GPU-xyz", 64}, Case{"99", 69},
                           Case{"0,99", 69}, Case{"GPU-ffffffff-ffff", 69}}) {
    LaunchedJob job(Words{"--gpus", each.list, "/bin/sh", "-c", "touch started"});
    EXPECT_EQ(job.exit_code(), each.exit_code) << each.list;
    EXPECT_THAT(job.err(), HasSubstr(std::string("--gpus ") + each.list));
    EXPECT_TRUE(std::filesystem::is_empty(job.directory())) << each.list;
  }
}

// The launcher never creates a CUDA context, and holds no device of the driver open while ranks run. (NVML
// itself loads libcuda, so that library may be mapped.)
TEST(LauncherAloneOnGpus, TheLauncherItselfIsNoProcessOfAnyGpu) {
  LaunchedJob job(launched_rank_with({"--gpus", "0"}, {"*=fill-memory"}));
  ASSERT_TRUE(job.shows("filled", 60s));
  std::string const process = "/proc/" + std::to_string(job.pid());
  for (auto const& fd : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code closed;
    EXPECT_THAT(std::filesystem::read_symlink(fd, closed).string(), Not(HasSubstr("nvidia")));
  }
  if (auto const pids = nvidia_smi("--query-compute-apps=pid")) {
    EXPECT_THAT(*pids, Not(::testing::Contains(std::to_string(job.pid()))));
  }
  // Meanwhile that GPU's memory is full.
  LaunchedJob second(Words{"--gpus", "0", "/bin/sh", "-c", "touch started"});
  EXPECT_EQ(second.exit_code(), 75);
  EXPECT_THAT(second.err(), HasSubstr("GPU 0 (" + inventory().gpus.at(0).name));
  EXPECT_TRUE(std::filesystem::is_empty(second.directory()));
  job.send(SIGTERM);
  EXPECT_EQ(job.exit_code(), 128 + SIGTERM);
  // The driver frees it a moment later, which the next job waits for.
  LaunchedJob third(Words{"--gpus", "0", "--no-log-files", "/bin/true"});
  EXPECT_EQ(third.exit_code(), 0) << third.err();
}

TEST(LauncherOnGpus, RanksInheritNothingOfTheDriver) {
  LaunchedJob job(Words{"--gpus", "0", "--log-dir", "logs", "--", "ls", "/proc/self/fd"});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.out(), "[0] 0\n[0] 1\n[0] 2\n[0] 3\n") << "3 is the directory that ls reads";
}

// L8
TEST(LauncherOnGpus, TheReportNamesDeviceAndUuid) {
  LaunchedJob job(Words{"--gpus", "0", "--no-log-files", "--", "/bin/sh", "-c", "exit 3"});
  EXPECT_EQ(job.exit_code(), 3);
  EXPECT_THAT(job.err(), HasSubstr(text(", cuda:0 = ", inventory().gpus.at(0).uuid, ") on ")));
}

// D3: a context takes hundreds of MiB, which the driver counts at once.
TEST(LauncherAloneOnGpus, D3ListDevicesMakesNoContextOnAnyGpu) {
  auto const used = [] {
    std::vector<std::size_t> bytes;
    for (PhysicalGpu const& gpu : read_inventory().gpus) {
      bytes.push_back(gpu.memory ? gpu.memory->total.value - gpu.memory->free.value : 0);
    }
    return bytes;
  };
  constexpr std::size_t kFarBelowAContext = std::size_t{64} << 20;
  constexpr std::size_t kFull = std::size_t{8} << 30;
  Deadline const freed = Deadline::after(20s);  // memory of ranks that tests before this one ended
  while (used()[0] > kFull && !freed.expired()) std::this_thread::sleep_for(50ms);
  auto const before = used();
  std::atomic<bool> over{false};
  std::thread jobs([&] {
    for (int i = 0; i < 5; ++i) {
      LaunchedJob job(Words{"--list-devices", "--json"});
      EXPECT_EQ(job.exit_code(), 0) << job.err();
    }
    over = true;
  });
  int looks = 0;
  while (!over) {
    auto const now = used();
    for (std::size_t i = 0; i < now.size(); ++i)
      EXPECT_LT(now[i], before[i] + kFarBelowAContext) << "GPU " << i;
    ++looks;
  }
  jobs.join();
  EXPECT_GT(looks, 5);
  auto const stream = make_compute_stream(Device{DeviceKind::cuda, DeviceIndex{0}});
  EXPECT_GT(used()[0], before[0] + kFarBelowAContext) << "a context would have been seen";
}

}  // namespace
}  // namespace ddp::testing

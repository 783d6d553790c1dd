// Quotas of made-up cgroups.
#include "core/system/cgroup.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <string>

#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MadeUpCgroups : public ::testing::Test {
 protected:
  void write(std::string const& name, std::string const& content) const {
    auto const path = root_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  /// Of a process whose /proc/self/cgroup that is.
  [[nodiscard]] std::vector<double> cpus_of(std::string const& membership) const {
    write("proc/self/cgroup", membership);
    std::vector<double> cpus;
    for (CpuQuota const& quota : cpu_quotas(root_.path())) cpus.push_back(quota.cpus);
    return cpus;
  }
  TemporaryFolder root_;
};

TEST_F(MadeUpCgroups, QuotasAreReadFromTheOwnOneOutwards) {
  write("sys/fs/cgroup/job/rank/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_THAT(cpus_of("4:memory:/other\n0::/job/rank\n"), ElementsAre(1.5, 4)) << "max is none";
  auto const quotas = cpu_quotas(root_.path());
  EXPECT_NE(quotas[0].group, quotas[1].group);
  EXPECT_THAT(cpus_of("0::/job\n"), ElementsAre(4));
  EXPECT_EQ(cpu_quotas(root_.path()).front().group, quotas[1].group);
  EXPECT_THAT(cpus_of("0::/\n"), ElementsAre(4)) << "in a container: its own";
  EXPECT_THAT(cpus_of("0::/gone/away\n"), ElementsAre(4)) << "a path of the host";
  EXPECT_THAT(cpus_of("0::/../../away\n"), ElementsAre(4)) << "a path beside what is seen";
}

TEST_F(MadeUpCgroups, QuotasOfVersion1AreReadWhereItsControllerIs) {
  write("sys/fs/cgroup/cpu/job/step/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/step/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/other/cpu.max", "100000 100000\n");
  EXPECT_THAT(cpus_of("5:cpuset:/\n4:cpu,cpuacct:/job/step\n1:name=systemd:/\n"), ElementsAre(2.5));
  EXPECT_THAT(cpus_of("4:cpu,cpuacct:/job/step\n0::/other\n"), ElementsAre(2.5, 1)) << "both count";
  EXPECT_THAT(cpus_of("4:cpuset,cpuacct:/job/step\n"), IsEmpty());
}

TEST_F(MadeUpCgroups, FilesThatAreMissingOrSaySomethingElseAreNoLimit) {
  EXPECT_THAT(cpu_quotas(root_.path()), IsEmpty());
  for (char const* content : {"", "100000\n", "0 100000\n", "100000 0\n", "-1 100000\n", "much of it\n"}) {
    write("sys/fs/cgroup/cpu.max", content);
    EXPECT_THAT(cpus_of("0::/\n"), IsEmpty()) << content;
  }
}

TEST_F(MadeUpCgroups, AControllersFoldersAreThoseOfItsHierarchyThenThoseOfTheCommonOne) {
  write("proc/self/cgroup", "4:memory:/a/b\n0::/c\n");
  auto const mount = root_.path() / "sys/fs/cgroup";
  EXPECT_THAT(cgroup_folders("memory", root_.path()),
              ElementsAre(mount / "memory/a/b", mount / "memory/a", mount / "memory", mount / "c", mount));
  EXPECT_THAT(cgroup_folders("cpu", root_.path()), SizeIs(2));
}

}  // namespace
}  // namespace ddp::testing

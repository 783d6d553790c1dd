// L12: what --check says of the host and of libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/check/machine_check.hpp"
#include "support/fakes/made_up_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HostChecks, SharedMemoryMattersToNcclOnly) {
  MachineFacts facts = good_facts();
  facts.shared_memory->free = 1_GiB;
  EXPECT_EQ(check_shared_memory(kTwoGpus, facts).verdict, kOk);
  facts.shared_memory = ShmFilesystem{64_MiB, 64_MiB, true};
  Check const small = check_shared_memory(kTwoGpus, facts);
  EXPECT_EQ(small.verdict, kWarning);
  EXPECT_EQ(small.found, "64 MiB, 64 MiB free");
  EXPECT_THAT(small.advice, HasSubstr("--shm-size=1g"));
  EXPECT_EQ(check_shared_memory(kTwoCpus, facts).verdict, kOk);
  facts.shared_memory = ShmFilesystem{16_GiB, 1_MiB, true};
  EXPECT_EQ(check_shared_memory(kTwoGpus, facts).verdict, kWarning) << "others filled it";
  facts.shared_memory->writable = false;
  EXPECT_EQ(check_shared_memory(kTwoGpus, facts).verdict, kFailed);
  facts.shared_memory.reset();
  EXPECT_EQ(check_shared_memory(kTwoGpus, facts).verdict, kFailed);
  EXPECT_EQ(check_shared_memory(kTwoCpus, facts).verdict, kOk);
  EXPECT_EQ(named(checks_of({"--virtual", "2"}, machine_with({gpu(0)}), facts), "/dev/shm").verdict, kOk);
}

TEST(HostChecks, LockedMemoryMattersToAdaptersOnly) {
  MachineFacts facts = good_facts();
  EXPECT_THAT(check_locked_memory(facts).found, StartsWith("unlimited"));
  facts.locked_memory = (8_MiB).value;
  EXPECT_EQ(check_locked_memory(facts).verdict, kOk);
  EXPECT_THAT(check_locked_memory(facts).found, StartsWith("8 MiB; no InfiniBand"));
  facts.rdma_devices = {"mlx5_0", "mlx5_1"};
  EXPECT_EQ(check_locked_memory(facts).verdict, kWarning);
  EXPECT_EQ(check_locked_memory(facts).found, "8 MiB; adapters: mlx5_0, mlx5_1");
  facts.locked_memory.reset();
  EXPECT_EQ(check_locked_memory(facts).verdict, kOk);
}

TEST(HostChecks, OpenFilesAreCountedForRanksAndForTheLauncher) {
  MachineFacts facts = good_facts();
  EXPECT_EQ(check_open_files(kTwoGpus, facts).verdict, kOk);
  facts.open_files = 256;
  EXPECT_EQ(check_open_files(kTwoGpus, facts).verdict, kWarning);
  EXPECT_EQ(check_open_files(kTwoGpus, facts).found, "256, at most 1048576");
  facts.most_open_files = 256;
  EXPECT_EQ(check_open_files({{}, 33, false}, facts).verdict, kWarning) << "24 + 7 x 33 fit";
  EXPECT_EQ(check_open_files({{}, 34, false}, facts).verdict, kFailed);
  facts.open_files.reset();
  facts.most_open_files.reset();
  EXPECT_EQ(check_open_files({{}, 1024, false}, facts).found, "unlimited, at most unlimited");
}

TEST(HostChecks, CoresAndLinuxMustDoForTheRanks) {
  Machine machine = machine_with({});
  machine.allowed_cores = 2;
  EXPECT_EQ(check_cores(kTwoCpus, machine).verdict, kOk);
  EXPECT_EQ(check_cores({{}, 3, false}, machine).verdict, kWarning);
  MachineFacts facts = good_facts();
  EXPECT_EQ(check_linux(facts).found, "6.1.0");
  facts.pidfd_problem = "Function not implemented";
  EXPECT_EQ(check_linux(facts).verdict, kFailed);
  EXPECT_EQ(check_linux(facts).found, "6.1.0: pidfd_open: Function not implemented");
}

TEST(HostChecks, NcclMustHaveWhatIsCalled) {
  MachineFacts facts = good_facts();
  auto const verdict_of = [&](char const* version) {
    facts.nccl.version = version;
    EXPECT_EQ(check_nccl(kTwoCpus, facts).verdict, kOk) << "CPU ranks do without";
    return check_nccl(kTwoGpus, facts).verdict;
  };
  EXPECT_EQ(verdict_of("2.28.3"), kOk);
  EXPECT_EQ(verdict_of("2.30.1"), kOk);
  EXPECT_EQ(verdict_of("2.27.5"), kWarning) << "older than the header that was compiled";
  EXPECT_EQ(verdict_of("2.17.1"), kFailed);
  EXPECT_EQ(verdict_of("of unknown version"), kFailed);
  facts.nccl = {"", "", "libnccl.so.2: cannot open shared object file"};
  Check const none = check_nccl(kTwoGpus, facts);
  EXPECT_EQ(none.verdict, kWarning) << "a program may know its own";
  EXPECT_EQ(none.found, "none: libnccl.so.2: cannot open shared object file; built with 2.28.3");
  facts.built_with.nccl = "";
  EXPECT_EQ(verdict_of("2.18.1"), kOk);
}

TEST(HostChecks, MpirunMustBelongToTheLibrary) {
  MachineFacts facts = good_facts();
  EXPECT_EQ(check_mpi(facts).verdict, kOk);
  facts.mpirun.version = "mpirun (Open MPI) 5.0.7";
  EXPECT_EQ(check_mpi(facts).verdict, kWarning);
  facts.mpirun.version = "HYDRA build details:";
  EXPECT_EQ(check_mpi(facts).verdict, kWarning);
  facts.mpi.version = "MPICH Version:      4.0.2";
  EXPECT_EQ(check_mpi(facts).verdict, kOk) << "their numbers are not compared";
  facts.mpirun = {"", "", "no mpirun in PATH=/bin"};
  EXPECT_EQ(check_mpi(facts).verdict, kOk);
  EXPECT_THAT(check_mpi(facts).found, HasSubstr("no mpirun: no mpirun in PATH=/bin"));
  facts = good_facts();
  facts.mpi = {"", "", "libmpi.so.40: cannot open shared object file"};
  EXPECT_EQ(check_mpi(facts).verdict, kWarning) << "this build was linked with it";
  facts.built_with.mpi = "";
  EXPECT_EQ(check_mpi(facts).verdict, kOk);
  facts.mpirun = {};
  EXPECT_THAT(check_mpi(facts).found, HasSubstr("only ranks that mpirun or srun start need it"));
}

}  // namespace
}  // namespace ddp::launcher

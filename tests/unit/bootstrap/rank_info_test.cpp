// L5: the environment that is accepted, in its order, and what is refused.
#include "ddp/bootstrap/rank_info.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "ddp/core/error.hpp"

namespace ddp {
namespace {

using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

RankInfo from(Environment const& environment) {
  return RankInfo::from([&](std::string const& name) -> std::optional<std::string> {
    auto const found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

Environment operator+(Environment left, Environment const& right) {
  for (auto const& [name, value] : right) left[name] = value;
  return left;
}

Environment without(Environment environment, std::string const& name) {
  environment.erase(name);
  return environment;
}

void expect_place(RankInfo const& info, RankSource source, int rank, int size, int local_rank,
                  int local_size) {
  EXPECT_EQ(info.source, source) << to_string(info.source);
  EXPECT_EQ(info.rank, rank);
  EXPECT_EQ(info.size, size);
  EXPECT_EQ(info.local_rank, local_rank);
  EXPECT_EQ(info.local_size, local_size);
}

void expect_refused(Environment const& environment, std::vector<std::string> const& parts) {
  try {
    static_cast<void>(from(environment));
    FAIL() << "expected an error with " << parts.front();
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    for (std::string const& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

Environment const kLauncher{{"DDP_CONTROL", "/tmp/ddp-1/control"},
                            {"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"}};
Environment const kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "6"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
Environment const kPmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}};
Environment const kStep{{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "7"},
                        {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "2"},
                        {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "7"},
                        {"SLURM_JOB_ID", "42"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"}};
Environment const kPmix{{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prterun-node7-4711@1"}};
Environment const kTorchrun{
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_PORT", "29500"}};

TEST(RankInfo, AnEmptyEnvironmentIsAlone) {
  RankInfo const info = from({});
  expect_place(info, RankSource::alone, 0, 1, 0, 1);
  EXPECT_EQ(info.control, "");
  EXPECT_EQ(info.error_file, "");
  EXPECT_EQ(info.generation, 0);
}

TEST(RankInfo, ReadsWhatDdpLaunchSets) {
  RankInfo const info = from(kLauncher + Environment{{"DDP_JOB_ID", "job-7"},
                                                     {"DDP_GENERATION", "2"},
                                                     {"DDP_SURVIVE", "1"},
                                                     {"DDP_ERROR_FILE", "/tmp/error.json"}});
  expect_place(info, RankSource::launcher, 3, 8, 1, 4);
  EXPECT_EQ(info.control, "/tmp/ddp-1/control");
  EXPECT_EQ(info.job_id, "job-7");
  EXPECT_EQ(info.generation, 2);
  EXPECT_TRUE(info.survives);
  EXPECT_EQ(info.error_file, "/tmp/error.json");
}

TEST(RankInfo, JobGenerationAndErrorFileAreOptional) {
  RankInfo const info = from(kLauncher);
  EXPECT_EQ(info.job_id, "");
  EXPECT_EQ(info.generation, 0);
  EXPECT_FALSE(info.survives);
  EXPECT_EQ(info.error_file, "");
}

TEST(RankInfo, ARelativeErrorFileIsWhereTheProgramWas) {
  EXPECT_EQ(from({{"DDP_ERROR_FILE", "error.json"}}).error_file,
            std::filesystem::current_path() / "error.json");
}

TEST(RankInfo, DdpControlNeedsEveryRankVariable) {
  for (char const* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    expect_refused(without(kLauncher, name), {"DDP_CONTROL", std::string(name) + " is not set"});
  }
  expect_refused(kLauncher + Environment{{"DDP_CONTROL", ""}}, {"DDP_CONTROL=\"\"", "path"});
}

TEST(RankInfo, ReadsOpenMpi) { expect_place(from(kOpenMpi), RankSource::open_mpi, 5, 6, 2, 3); }

TEST(RankInfo, ReadsPmiAndTakesItForOneHostUnlessTold) {
  expect_place(from(kPmi), RankSource::pmi, 1, 4, 1, 4);
  expect_place(from(kPmi + Environment{{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}), RankSource::pmi,
               1, 4, 0, 2);
}

TEST(RankInfo, ReadsAnSrunStepAndItsTasksPerNode) {
  RankInfo const info = from(kStep);
  expect_place(info, RankSource::slurm, 5, 7, 1, 2);
  EXPECT_EQ(info.job_id, "slurm-42");
  expect_place(
      from(kStep + Environment{{"SLURM_PROCID", "6"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "3"}}),
      RankSource::slurm, 6, 7, 0, 1);
  expect_place(from(without(kStep, "SLURM_STEP_TASKS_PER_NODE")), RankSource::slurm, 5, 7, 5, 7);
}

TEST(RankInfo, SlurmVariablesOutsideAnSrunStepAreIgnored) {
  expect_place(from(without(kStep, "SLURM_STEP_ID")), RankSource::alone, 0, 1, 0, 1);
  expect_place(from(without(kStep, "SLURM_STEP_NUM_TASKS")), RankSource::alone, 0, 1, 0, 1);
  // Slurm's own steps: batch script, salloc's shell, extern.
  for (char const* step : {"4294967291", "4294967290", "4294967292", "4294967294"}) {
    expect_place(from(kStep + Environment{{"SLURM_STEP_ID", step}}), RankSource::alone, 0, 1, 0, 1);
  }
}

TEST(RankInfo, TheFirstCompleteSourceWins) {
  EXPECT_EQ(from(kLauncher + kOpenMpi + kPmi + kStep).source, RankSource::launcher);
  EXPECT_EQ(from(kOpenMpi + kPmi + kStep + kTorchrun).source, RankSource::open_mpi);
  EXPECT_EQ(from(kPmi + kStep + kTorchrun).source, RankSource::pmi);
  EXPECT_EQ(from(kStep + kTorchrun).source, RankSource::slurm);
  EXPECT_EQ(from(without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE") + kPmi).source, RankSource::pmi)
      << "incomplete";
  EXPECT_EQ(from(kStep + kPmix + kTorchrun).source, RankSource::slurm);
  EXPECT_EQ(from(kPmix + kTorchrun).source, RankSource::pmix);
  EXPECT_EQ(from(Environment{{"PMI_RANK", "1"}, {"PMIX_RANK", "1"}}).source, RankSource::alone)
      << "incomplete";
}

TEST(RankInfo, PmixRankCarriesNoSizeMpiHasIt) {
  RankInfo const info = from(kPmix);
  expect_place(info, RankSource::pmix, 2, 0, 2, 0);
  EXPECT_FALSE(info.local_known);
  expect_refused(kPmix + Environment{{"PMIX_RANK", "two"}}, {"PMIX_RANK=\"two\""});
}

TEST(RankInfo, SaysWhetherItKnowsThisHostsProcesses) {
  EXPECT_TRUE(from(kLauncher).local_known);
  EXPECT_TRUE(from(kOpenMpi).local_known);
  EXPECT_TRUE(from(kStep).local_known);
  EXPECT_TRUE(from({}).local_known);
  EXPECT_FALSE(from(kPmi).local_known);
  EXPECT_FALSE(from(without(kStep, "SLURM_LOCALID")).local_known);
}

TEST(RankInfo, ReadsTheAddressOfRank0) {
  Environment const by_hand = kTorchrun + Environment{{"MASTER_ADDR", "node1"}};
  RankInfo const info = from(by_hand);
  EXPECT_EQ(info.source, RankSource::address);
  EXPECT_EQ(info.address, "node1");
  EXPECT_EQ(info.port, 29500);
  EXPECT_EQ(info.size, 2);
  EXPECT_FALSE(info.local_known);
  expect_place(from(by_hand + Environment{{"LOCAL_WORLD_SIZE", "1"}}), RankSource::address, 0, 2, 0, 1);
  EXPECT_EQ(from(by_hand + Environment{{"DDP_JOB_SECRET", "x"}}).secret, "x");
  EXPECT_EQ(from(by_hand + kOpenMpi).source, RankSource::open_mpi) << "set for PyTorch, perhaps";
  expect_refused(by_hand + Environment{{"MASTER_PORT", "0"}}, {"MASTER_PORT=\"0\"", "from 1 to 65535"});
  expect_refused(by_hand + Environment{{"MASTER_ADDR", ""}}, {"MASTER_ADDR=\"\"", "rank 0's host"});
  expect_refused(by_hand + Environment{{"DDP_JOB_SECRET", std::string(256, 'x')}}, {"DDP_JOB_SECRET", "255"});
}

// As PyTorchJob of Kubernetes' training operator sets them for a worker.
TEST(RankInfo, ReadsWhatPyTorchJobSets) {
  RankInfo const info = from({{"MASTER_ADDR", "job-master-0"},
                              {"MASTER_PORT", "23456"},
                              {"WORLD_SIZE", "3"},
                              {"RANK", "2"},
                              {"PET_MASTER_ADDR", "job-master-0"},
                              {"PET_MASTER_PORT", "23456"},
                              {"PET_NNODES", "3"},
                              {"PET_NODE_RANK", "2"},
                              {"PYTHONUNBUFFERED", "1"}});
  expect_place(info, RankSource::address, 2, 3, 2, 3);
  EXPECT_EQ(info.address, "job-master-0");
  EXPECT_EQ(info.port, 23456);
}

TEST(RankInfo, WhereTorchrunsAgentHasThePortRank0TakesTheNext) {
  Environment const agent =
      kTorchrun + Environment{{"MASTER_ADDR", "node1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(from(agent).port, 29501);
  EXPECT_EQ(from(agent + Environment{{"TORCHELASTIC_USE_AGENT_STORE", "False"}}).port, 29500);
}

TEST(RankInfo, WithoutPmixTheRanksOfAnSrunStepFindTheFirstHost) {
  auto const address = [](std::string const& hosts) {
    return from(kStep + Environment{{"SLURM_STEP_NODELIST", hosts}}).address;
  };
  EXPECT_EQ(address("node1"), "node1");
  EXPECT_EQ(address("node1,node2"), "node1");
  EXPECT_EQ(address("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(address("gpu[3,5]"), "gpu3");
  EXPECT_EQ(address("a[1,3]-ib,b"), "a1-ib");
  EXPECT_EQ(address("node7,node8"), "node7");
  EXPECT_EQ(address(""), "");
  EXPECT_EQ(address("rack[1-2]-gpu[07-08].cluster"), "rack1-gpu07.cluster");
  EXPECT_EQ(address("gpu-a-[1-2]"), "gpu-a-1");
  Environment const step = kStep + Environment{{"SLURM_STEP_NODELIST", "node1"}};
  int const port = from(step).port;
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 29000);
  EXPECT_EQ(from(step + Environment{{"SLURM_PROCID", "0"}}).port, port) << "on every rank";
  EXPECT_NE(from(step + Environment{{"SLURM_STEP_ID", "1"}}).port, port) << "steps of a job run side by side";
  RankInfo const chosen = from(step + Environment{{"MASTER_ADDR", "ib1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(chosen.address, "ib1");
  EXPECT_EQ(chosen.port, 1234);
  EXPECT_EQ(from(step + Environment{{"DDP_JOB_SECRET", "x"}}).secret, "x");
  EXPECT_EQ(from(step + kPmix).address, "") << "MPI tells them";
}

TEST(RankInfo, R26HowFewRanksMayGoOnIsReadWhereRank0ServesTheOthersAndRefusedWhereMpiEndsThem) {
  Environment const two{{"DDP_MIN_RANKS", "2"}};
  Environment const by_hand = kTorchrun + Environment{{"MASTER_ADDR", "node1"}};
  EXPECT_EQ(from(by_hand).min_ranks, 0);
  EXPECT_EQ(from(by_hand + two).min_ranks, 2);
  Environment const step = kStep + Environment{{"SLURM_STEP_NODELIST", "node1"}};
  EXPECT_EQ(from(step + two).min_ranks, 2);
  EXPECT_EQ(from(step + kPmix + two).address, "node1") << "without MPI, though it is offered";
  EXPECT_EQ(from(kLauncher + two).min_ranks, 0) << "ddp-launch serves";
  EXPECT_EQ(from(two).min_ranks, 0) << "alone";
  for (Environment const& mpi : {kOpenMpi, kPmi, kPmix}) {
    expect_refused(mpi + two, {"DDP_MIN_RANKS=2", "through MPI, which ends all of them", "MASTER_ADDR"});
  }
  expect_refused(by_hand + Environment{{"DDP_MIN_RANKS", "3"}}, {"DDP_MIN_RANKS=3", "the job has 2 ranks"});
  expect_refused(by_hand + Environment{{"DDP_MIN_RANKS", "0"}}, {"DDP_MIN_RANKS=\"0\"", "from 1"});
}

TEST(RankInfo, RanksWithoutAnAddressAreRefusedWithTheCommandsThatWork) {
  expect_refused(kTorchrun,
                 {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR", "ddp-launch --cpus", "mpirun -np", "srun -n"});
  EXPECT_EQ(from(Environment{{"RANK", "0"}}).source, RankSource::alone) << "RANK alone says nothing";
}

TEST(RankInfo, ARankOfOneIsAloneWithoutAControlPlane) {
  Environment const one = kTorchrun + Environment{{"WORLD_SIZE", "1"}};
  expect_place(from(one), RankSource::alone, 0, 1, 0, 1);
  expect_refused(one + Environment{{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE=1", "from 0 to 0"});
}

TEST(RankInfo, MalformedNumbersAreNamed) {
  for (char const* value : {"", " 3", "3 ", "3x", "0x3", "-1", "99999999999999999999", "3.0"}) {
    expect_refused(kLauncher + Environment{{"RANK", value}},
                   {std::string("RANK=\"") + value + "\"", "expected a whole number from 0"});
  }
  expect_refused(kLauncher + Environment{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE=\"0\"", "from 1"});
  expect_refused(kLauncher + Environment{{"DDP_GENERATION", "two"}}, {"DDP_GENERATION=\"two\""});
  expect_refused(kOpenMpi + Environment{{"OMPI_COMM_WORLD_LOCAL_SIZE", "many"}},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE"});
  expect_refused(kPmi + Environment{{"PMI_SIZE", "many"}}, {"PMI_SIZE=\"many\""});
  expect_refused(kStep + Environment{{"SLURM_STEP_ID", "x"}}, {"SLURM_STEP_ID=\"x\""});
}

TEST(RankInfo, ContradictionsAreNamed) {
  expect_refused(kLauncher + Environment{{"RANK", "8"}}, {"RANK=8", "WORLD_SIZE=8", "from 0 to 7"});
  expect_refused(kLauncher + Environment{{"LOCAL_RANK", "4"}}, {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"});
  expect_refused(kLauncher + Environment{{"LOCAL_WORLD_SIZE", "9"}}, {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"});
  expect_refused(kPmi + Environment{{"PMI_RANK", "4"}}, {"PMI_RANK=4", "PMI_SIZE=4"});
  expect_refused(kStep + Environment{{"SLURM_NTASKS", "8"}}, {"SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=7"});
  expect_refused(kStep + Environment{{"SLURM_NODEID", "4"}}, {"SLURM_NODEID=4", "4 nodes"});
  expect_refused(kStep + Environment{{"SLURM_LOCALID", "2"}}, {"SLURM_LOCALID=\"2\""});
}

TEST(RankInfo, MalformedTaskCountsAreNamed) {
  for (char const* value : {"", "x", "2(x", "2(x)", "2(3)", "(x2)", "0", "2(x0)", ",2", "2(x3)4"}) {
    expect_refused(kStep + Environment{{"SLURM_STEP_TASKS_PER_NODE", value}}, {"SLURM_STEP_TASKS_PER_NODE"});
  }
}

}  // namespace
}  // namespace ddp

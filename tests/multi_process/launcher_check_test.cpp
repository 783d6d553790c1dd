// L12: ddp-launch --check as a user runs it, on a machine whose driver lists the GPUs of the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/fakes/fake_nvml.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using Words = std::vector<std::string>;

/// --check with these options, on these GPUs.
struct Checked {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Checked check(std::string const& gpus, Words options = {}, Words const& environment = {}) {
  options.insert(options.begin(), "--check");
  LaunchedJob job(options, {.environment = with_gpus(gpus, environment)});
  Checked checked;
  checked.exit_code = job.exit_code();
  checked.out = job.out();
  checked.err = job.err();
  EXPECT_TRUE(std::filesystem::is_empty(job.directory())) << "nothing is started, nothing is written";
  return checked;
}

TEST(LauncherCheck, EveryLineHasAVerdictAndTheLastOneTheSums) {
  Checked const checked = check("none");
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  EXPECT_EQ(checked.err, "");
  std::istringstream lines(checked.out);
  std::size_t count = 0;
  std::string last;
  for (std::string line; std::getline(lines, line); ++count, last = line) {
    EXPECT_THAT(line, ::testing::AnyOf(MatchesRegex("(OK     |WARNING|FAILED )  [A-Za-z/].*"),
                                       MatchesRegex("[0-9]+ ok, [0-9]+ warnings?, 0 failed")));
  }
  EXPECT_EQ(count, 9U) << checked.out;
  EXPECT_THAT(last, HasSubstr(" 0 failed"));
  EXPECT_THAT(checked.out, HasSubstr("OK       GPUs           none listed by driver 580.00.01"));
  for (char const* name : {"Linux", "cores", "/dev/shm", "locked memory", "open files", "NCCL", "MPI"}) {
    EXPECT_THAT(checked.out, HasSubstr(std::string("  ") + name + "  ")) << name;
  }
}

TEST(LauncherCheck, GpusOfTheJobAndTheirPeersAreLookedAt) {
  Checked const all = check("H200 H200/140000/4711 H200", {}, {"FAKE_NVML_PEERS=nvlink 0-1=none"});
  EXPECT_EQ(all.exit_code, 0) << "warnings do not fail: " << all.out;
  EXPECT_THAT(all.out, ContainsRegex("OK       GPU 0 +NVIDIA H200, GPU-aaaaaaaa"));
  EXPECT_THAT(all.out,
              ContainsRegex("WARNING  GPU 1 .*in use by pid 4711; expected a GPU that nobody else uses"));
  EXPECT_THAT(all.out, ContainsRegex("WARNING  peer access .*none from GPU 0 to 1"));
  EXPECT_THAT(all.out, ContainsRegex("\n +GPU 0   -       no      NVLink\n"));
  Checked const chosen =
      check("H200 H200/140000/4711 H200", {"--gpus", "2,0"}, {"FAKE_NVML_PEERS=nvlink 0-1=none"});
  EXPECT_EQ(chosen.exit_code, 0) << chosen.out;
  EXPECT_THAT(chosen.out, Not(HasSubstr("GPU 1")));
  EXPECT_THAT(chosen.out, ContainsRegex("OK       peer access +all pairs, over NVLink"));
}

// L9
TEST(LauncherCheck, TheExitCodeIsThatOfTheJobThatWouldFail) {
  EXPECT_EQ(check("H200 H200/100/4711").exit_code, 75) << "a full GPU";
  EXPECT_EQ(check("H200 H200/100/4711", {"--gpus", "0"}).exit_code, 0);
  EXPECT_EQ(check("H200", {"--gpus", "3"}).exit_code, 69);
  EXPECT_EQ(check("H200 lost").exit_code, 69);
  EXPECT_EQ(check("H200 lost", {"--cpus", "1"}).exit_code, 0);
  EXPECT_EQ(check("H200", {"--gpus", "0,0"}).exit_code, 64);
  Checked const hosts = check("H200", {"--hostfile", "hosts"});
  EXPECT_EQ(hosts.exit_code, 64);
  EXPECT_THAT(hosts.err, HasSubstr("--map-by ppr:1:node --bind-to none ddp-launch --check"));
  EXPECT_EQ(hosts.out, "");
}

// D1, D3
TEST(LauncherCheck, ListDevicesShowsAllGpusAndWhatTheyAreForRanks) {
  auto const list = [](std::string const& gpus, Words words, Words const& environment = {}) {
    words.insert(words.begin(), "--list-devices");
    LaunchedJob job(words, {.environment = with_gpus(gpus, environment)});
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    EXPECT_EQ(job.err(), "");
    return job.out();
  };
  std::string const out = list("L4 H200-mig2 H200/100/4711", {}, {"CUDA_VISIBLE_DEVICES=2,1"});
  std::string const tail = "-0000-0000-0000-00000000000";
  EXPECT_THAT(
      out,
      HasSubstr("cuda:0 -> physical 2: NVIDIA H200, pci 0000:1c:00.0, sm_90, 140.4 GiB (140.3 used), uuid "
                "GPU-cccccccc" +
                tail + "0, in use by pid 4711\n"));
  EXPECT_THAT(
      out,
      HasSubstr("\ncuda:2 -> physical 1: NVIDIA H200, pci 0000:1b:00.0, sm_90, 140.4 GiB (0.0 used), uuid "
                "MIG-bbbbbbbb" +
                tail + "2\n"));
  EXPECT_THAT(out,
              HasSubstr("\ncpu:0 -> CPU\nhidden -> physical 0: NVIDIA L4, pci 0000:1a:00.0, sm_90, 140.4 GiB "
                        "(0.0 used), uuid GPU-aaaaaaaa" +
                        tail + "0\n"));
  EXPECT_THAT(out,
              ContainsRegex("\ndriver 580.00.01 .CUDA 13.0., .*NCCL.*, .*cuDNN.*, .*[0-9]+ CPU cores?\n$"));
  EXPECT_THAT(list("H200 H200", {"--gpus", "1"}),
              ContainsRegex("^cuda:0 -> physical 1: .*\ncpu:0 -> CPU\nhidden -> physical 0: "));
  EXPECT_THAT(
      list("H200 H200", {"--virtual", "2"}),
      ContainsRegex("^cuda:0 -> physical 0, virtual 0 of 2: .*\ncuda:1 -> physical 0, virtual 1 of 2: .*\n"
                    "cuda:2 -> physical 1, virtual 0 of 2: "));
  EXPECT_THAT(list("none", {}), ContainsRegex("^cpu:0 -> CPU\ndriver 580.00.01 lists no GPU\n"));
  EXPECT_THAT(list("none", {"--virtual", "2"}),
              ContainsRegex("^cpu:0 -> CPU, virtual 0 of 2\ncpu:1 -> CPU, virtual 1 of 2\n"));
  EXPECT_THAT(list("H200 lost", {}), HasSubstr("\nGPU 1 of the driver cannot be asked: GPU is lost (15)\n"));
  auto const json = nlohmann::json::parse(list("H200 H200", {"--json"}));
  EXPECT_EQ(json["gpus"][1]["name"], "NVIDIA H200");
  EXPECT_EQ(json["peer_access"][1], nlohmann::json({"nvlink", "itself"}));
  EXPECT_EQ(json["problem"], "");
  EXPECT_EQ(json["logical"][1]["device"], "cuda:1");
  EXPECT_EQ(json["logical"][1]["physical"], 1);
  EXPECT_EQ(json["logical"][2]["device"], "cpu:0");
  EXPECT_EQ(json["versions"]["driver"], "580.00.01");
  for (char const* name : {"cuda_driver", "cuda_runtime", "nccl", "cudnn", "mpi"}) {
    EXPECT_TRUE(json["versions"].contains(name)) << name;
  }
  EXPECT_GE(json["cpu_cores"], 1);
}

// D7
TEST(LauncherCheck, AMisspeltVariableIsWarnedOf) {
  LaunchedJob job({"--list-devices"}, {.environment = with_gpus("H200", {"CUDA_VISIBLE_DIVICES=0"})});
  EXPECT_EQ(job.exit_code(), 0);
  EXPECT_EQ(job.err(),
            "ddp-launch: warning: CUDA_VISIBLE_DIVICES is set, and CUDA does not read it; did you mean "
            "CUDA_VISIBLE_DEVICES?\n");
}

TEST(LauncherCheck, JsonHasTheSameVerdicts) {
  Checked const checked = check("H200 H200/100/4711", {"--json"}, {"FAKE_NVML_PEERS=pci"});
  EXPECT_EQ(checked.exit_code, 75);
  auto const json = nlohmann::json::parse(checked.out);
  EXPECT_EQ(json["exit_code"], 75);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["driver"], "580.00.01");
  EXPECT_EQ(json["cuda"], "13.0");
  EXPECT_EQ(json["gpus"][1]["processes"], nlohmann::json({4711}));
  EXPECT_EQ(json["peer_access"][0], nlohmann::json({"itself", "pcie"}));
  for (auto const& each : json["checks"]) {
    bool const full = each["name"] == "GPU 1";
    if (full || each["name"] == "GPU 0") {
      EXPECT_EQ(each["verdict"], full ? "FAILED" : "OK");
    }
  }
}

TEST(LauncherCheck, LimitsAreThoseOfTheProcess) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Checked const checked = check("none");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(checked.exit_code, 0);
  EXPECT_THAT(checked.out, ContainsRegex("WARNING  open files +200, at most [0-9a-z]+; expected 1024"));
}

TEST(LauncherCheck, TheMpirunInPathIsTheOneThatIsAsked) {
  TemporaryFolder const folder;
  std::string const mpirun = folder.path() / "mpirun";
  std::ofstream(mpirun) << "#!/bin/sh\necho 'mpirun (Open MPI) 9.8.7'\n";
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  Checked const checked = check("none", {}, {"PATH=" + folder.path().string() + ":/usr/bin:/bin"});
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
  EXPECT_THAT(checked.out, ContainsRegex("  MPI  .*" + mpirun + ": mpirun \\(Open MPI\\) 9\\.8\\.7"));
}

}  // namespace
}  // namespace ddp::testing

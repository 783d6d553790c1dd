// Commands as users of torchrun write them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "support/fakes/fake_nvml.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class TorchrunWords : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 -c '' >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "no python3 here (package python3)";
  }
  /// Runs in a folder that holds train.py and the module package.train, both with `program`.
  static LaunchedJob::Settings with_program(std::string const& program, Words environment = {}) {
    return {.environment = std::move(environment), .prepare = [program](std::filesystem::path const& folder) {
              std::filesystem::create_directory(folder / "package");
              std::ofstream(folder / "package/__init__.py");
              std::ofstream(folder / "package/train.py") << program;
              std::ofstream(folder / "train.py") << program;
            }};
  }
};

std::string const kShow =
    "import os, sys\n"
    "print(os.environ['RANK'], os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'], __name__, sys.argv[1:])\n";

// B12
TEST_F(TorchrunWords, AScriptIsRunWithPythonThoughItIsNotExecutable) {
  LaunchedJob job(
      {"--standalone", "--nnodes=1", "--nproc-per-node=2", "--no-log-files", "train.py", "-m", "--lr", "1"},
      with_program(kShow));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.sorted_lines(), ElementsAre("[0] 0 0 2 __main__ ['-m', '--lr', '1']",
                                              "[1] 1 1 2 __main__ ['-m', '--lr', '1']"));
}

// B12
TEST_F(TorchrunWords, AModuleIsRunWithPython) {
  LaunchedJob job({"--nproc_per_node", "2", "--no-log-files", "-m", "package.train", "--epochs", "3"},
                  with_program(kShow));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.sorted_lines(),
              ElementsAre("[0] 0 0 2 __main__ ['--epochs', '3']", "[1] 1 1 2 __main__ ['--epochs', '3']"));
}

// B12: python3 -u
TEST_F(TorchrunWords, PythonDoesNotBuffer) {
  LaunchedJob job({"--cpus", "1", "--no-log-files", "--no-line-buffering", "train.py"},
                  with_program("import os; print('printed'); os.kill(os.getpid(), 9)"));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_EQ(job.out(), "[0] printed\n");
}

// B12
TEST_F(TorchrunWords, TheJobBearsTheScriptsName) {
  LaunchedJob job({"--cpus", "1", "train.py"}, with_program(kShow));
  EXPECT_EQ(job.exit_code(), 0);
  auto const first = std::filesystem::directory_iterator(job.directory() / "ddp-logs");
  EXPECT_THAT(first->path().filename().string(), ::testing::StartsWith("train.py-20"));
}

// B12
TEST_F(TorchrunWords, AScriptThatIsNotThereIsSaidOnce) {
  LaunchedJob job({"--nproc-per-node", "2", "trian.py"}, with_program(kShow));
  EXPECT_EQ(job.exit_code(), 127);
  EXPECT_THAT(job.err(), HasSubstr("program not found: no trian.py in PATH"));
}

// B12
TEST_F(TorchrunWords, NumbersAreOfGpusWhereThereAreSome) {
  std::string const show =
      "import os; print(os.environ['LOCAL_RANK'], len(os.environ['CUDA_VISIBLE_DEVICES']))";
  for (auto const& [word, gpus] :
       std::vector<std::pair<std::string, int>>{{"2", 2}, {"1", 1}, {"gpu", 3}, {"auto", 3}}) {
    LaunchedJob job({"--nproc-per-node", word, "--no-log-files", "train.py"},
                    with_program(show, with_gpus("H200 H200 H200")));
    EXPECT_EQ(job.exit_code(), 0) << job.err();
    Words expected;
    for (int r = 0; r < gpus; ++r) {
      expected.push_back("[" + std::to_string(r) + "] " + std::to_string(r) + " " +
                         std::to_string(41 * gpus - 1));
    }
    EXPECT_EQ(job.sorted_lines(), expected) << word;
  }
  LaunchedJob many({"--nproc-per-node", "3", "train.py"}, with_program(show, with_gpus("H200 H200")));
  EXPECT_EQ(many.exit_code(), 69);
  EXPECT_THAT(many.err(), HasSubstr("--nproc-per-node 3: 2 GPUs are visible; --virtual N"));
  LaunchedJob none({"--nproc-per-node", "gpu", "train.py"}, with_program(show, with_gpus("none")));
  EXPECT_EQ(none.exit_code(), 69);
}

// B12
TEST_F(TorchrunWords, CpuMeansARankForEachCore) {
  LaunchedJob job({"--nproc-per-node", "cpu", "--no-log-files", "--dry-run", "train.py"},
                  with_program(kShow));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  auto const at = job.out().find("  WORLD_SIZE=");
  auto const cores = job.out().find("cores     ");
  ASSERT_NE(at, std::string::npos);
  ASSERT_NE(cores, std::string::npos);
  EXPECT_EQ(std::stoi(job.out().substr(at + 13)), std::stoi(job.out().substr(cores + 10)));
}

// What PyTorch's `record` writes.
std::string const kRecord =
    "import json, os, sys, time\n"
    "if os.environ['RANK'] == '1':\n"
    "    with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
    "        json.dump({'message': {'message': 'ValueError: bad batch', 'extraInfo': {\n"
    "            'py_callstack': 'Traceback:\\n  File train.py, line 7\\nValueError: bad batch\\n',\n"
    "            'timestamp': str(int(time.time()))}}}, file)\n"
    "    sys.exit(1)\n";

// B12
TEST_F(TorchrunWords, WhatPyTorchRecordsIsInTheReport) {
  LaunchedJob job({"--nproc-per-node", "2", "--no-log-files", "train.py"}, with_program(kRecord));
  EXPECT_EQ(job.exit_code(), 1);
  EXPECT_THAT(job.err(), HasSubstr("first cause: rank 1 "));
  EXPECT_THAT(job.err(), HasSubstr("  its error: ValueError: bad batch\n"));
  EXPECT_THAT(job.err(), HasSubstr("  where it was raised:\n"));
  EXPECT_THAT(job.err(), HasSubstr("  |   File train.py, line 7\n"));
  EXPECT_THAT(job.err(), Not(HasSubstr("()"))) << "PyTorch's errors have no code";
}

// B12
TEST_F(TorchrunWords, AnInheritedErrorFileIsNotPassedOn) {
  LaunchedJob job({"--nproc-per-node", "2", "--no-log-files", "train.py"},
                  with_program("import os; print(os.environ['TORCHELASTIC_ERROR_FILE']); os._exit(1)",
                               {"TORCHELASTIC_ERROR_FILE=/stale/error.json"}));
  EXPECT_EQ(job.exit_code(), 1);
  auto const lines = job.sorted_lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], ::testing::EndsWith("/rank0.torchelastic.json"));
  EXPECT_THAT(lines[1], ::testing::EndsWith("/rank1.torchelastic.json"));
  EXPECT_THAT(job.out(), Not(HasSubstr("stale")));
}

}  // namespace
}  // namespace ddp::testing

// ddp-bench as its users run it: what it prints, what it writes, how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "support/launcher/shell.hpp"
#include "support/trace_file.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DdpBench : public ::testing::Test {
 protected:
  [[nodiscard]] ShellOutcome run(std::string const& arguments) {
    return run_shell(folder_.path(), DDP_BENCH " " + arguments);
  }
  [[nodiscard]] ShellOutcome run_ranks(int ranks, std::string const& arguments) {
    return run_shell(folder_.path(), DDP_LAUNCH " --cpus " + std::to_string(ranks) +
                                         " --no-prefix -- " DDP_BENCH " " + arguments);
  }
  [[nodiscard]] nlohmann::json results() const {
    return nlohmann::json::parse(read_file(folder_.path() / "results.json"));
  }
  TemporaryFolder folder_;
};

void expect_positive(nlohmann::json const& row, char const* key) {
  ASSERT_TRUE(row.at(key).is_number()) << key << " in " << row;
  EXPECT_GT(row.at(key).get<double>(), 0) << key << " in " << row;
}

TEST_F(DdpBench, AllReduceOfTwoRanksWritesEverySizeWithItsFloor) {
  auto const outcome = run_ranks(2, "all-reduce --max 64KiB --rounds 5 --json results.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("64 KiB"));
  auto const report = results();
  EXPECT_EQ(report.at("backend"), "shm");
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_THAT(report.at("hardware").get<std::string>(), HasSubstr("CPUs"));
  EXPECT_THAT(report.at("date").get<std::string>(), ::testing::StartsWith("20"));
  ASSERT_EQ(report.at("rows").size(), 4U);
  std::size_t bytes = 1024;
  for (auto const& row : report.at("rows")) {
    EXPECT_EQ(row.at("bytes"), bytes);
    bytes *= 4;
    expect_positive(row, "us");
    expect_positive(row, "memcpy_us");
    expect_positive(row, "bus_gb_s");
    EXPECT_TRUE(row.at("raw_us").is_null()) << "shm has no plain library to compare with";
    EXPECT_TRUE(row.at("ratio").is_null());
    EXPECT_DOUBLE_EQ(row.at("memcpy_ratio").get<double>(),
                     row.at("us").get<double>() / row.at("memcpy_us").get<double>());
  }
}

TEST_F(DdpBench, AllReduceOfOddSizesAndThreeRanksIsRight) {
  auto const outcome =
      run_ranks(3, "all-reduce --min 4 --max 300004 --factor 7 --rounds 5 --json results.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(results().at("ranks"), 3);
  EXPECT_EQ(results().at("rows").back().at("bytes"), 300004);
}

TEST_F(DdpBench, DataParallelTimesStepsInOneProcessAndBesideThemTheRefreshOfReplicas) {
  std::string const sizes = "--layers 2 --width 16 --rows 4 --steps 2 --rounds 5 --json results.json";
  auto const alone = run("data-parallel --cpus 3 " + sizes);
  ASSERT_EQ(alone.exit_code, 0) << alone.out << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("x one broadcast of the same bytes"));
  auto const row = results().at("rows").at(0);
  EXPECT_EQ(row.at("path"), "DataParallel");
  EXPECT_EQ(row.at("devices"), 3);
  EXPECT_EQ(row.at("parameter_bytes"), 2 * (16 * 16 + 16) * sizeof(float));
  for (char const* const key : {"step_ms", "samples_per_second", "refresh_ms", "broadcast_ms"})
    expect_positive(row, key);

  auto const ranks = run_ranks(2, "data-parallel " + sizes);
  ASSERT_EQ(ranks.exit_code, 0) << ranks.out << ranks.err;
  EXPECT_EQ(results().at("rows").at(0).at("path"), "DistributedDataParallel");
  EXPECT_EQ(results().at("ranks"), 2);
  expect_positive(results().at("rows").at(0), "step_ms");
  EXPECT_NE(run_ranks(2, "data-parallel --cpus 2 " + sizes).exit_code, 0) << "ranks are no virtual devices";
}

TEST_F(DdpBench, AllReduceAloneIsOneRank) {
  auto const outcome = run("all-reduce --max 4KiB --rounds 5 --json results.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(results().at("backend"), "solo");
  EXPECT_EQ(results().at("rows").at(0).at("bus_gb_s"), 0) << "nothing crosses between ranks";
}

TEST_F(DdpBench, ReducerReportsEachNumberOfParameters) {
  auto const outcome = run("reducer --parameters 100 1000 --elements 16 --steps 5 --json results.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto const report = results();
  EXPECT_EQ(report.at("backend"), "null");
  ASSERT_EQ(report.at("rows").size(), 2U);
  EXPECT_EQ(report.at("rows").at(0).at("parameters"), 100);
  EXPECT_EQ(report.at("rows").at(1).at("parameters"), 1000);
  for (auto const& row : report.at("rows")) {
    expect_positive(row, "gradient_ready_ns");
    expect_positive(row, "synchronize_us");
    expect_positive(row, "buckets");
  }
}

// The program compares the gradients of both kinds of step, bit by bit, and fails if they differ.
TEST_F(DdpBench, OverlapPrintsAllFourTimesAndTracesOnlyTheLastSteps) {
  auto const outcome = run_ranks(2, "overlap --quick --json results.json --trace traces");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (char const* const line :
       {"backward alone", "communication alone", "step, overlapped", "step, one by one"}) {
    EXPECT_THAT(outcome.out, HasSubstr(line));
  }
  auto const report = results();
  EXPECT_EQ(report.at("ranks"), 2);
  auto const& row = report.at("rows").at(0);
  EXPECT_GE(row.at("buckets"), 16);
  EXPECT_EQ(row.at("gradient_bytes"), 16 * 128 * 128 * 4);
  for (char const* const key : {"rows", "compute_ms", "communication_ms", "overlapped_ms", "one_by_one_ms",
                                "overlapped_over_longer", "one_by_one_over_sum"}) {
    expect_positive(row, key);
  }
  for (char const* const file : {"traces/rank0.json", "traces/rank1.json"}) {
    auto const names = names_of(folder_.path() / file);
    auto const count = [&](char const* name) { return std::count(names.begin(), names.end(), name); };
    EXPECT_EQ(count("step, overlapped"), 2);
    EXPECT_EQ(count("step, one by one"), 1);
    for (char const* const name : {"forward", "backward", "weights of layer 3", "bucket 0", "bucket 15"}) {
      EXPECT_EQ(count(name), 3) << name;
    }
  }
}

TEST_F(DdpBench, OverlapOfOneRankSaysThatNothingIsSent) {
  auto const outcome = run("overlap --quick --rows 3 --json results.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("one rank: nothing to send"));
  EXPECT_EQ(results().at("rows").at(0).at("rows"), 3);
  auto const no_gpu = run("overlap --quick --dtype bf16");
  EXPECT_EQ(no_gpu.exit_code, 1);
  EXPECT_THAT(no_gpu.err, HasSubstr("no matrix products of bf16 on cpu"));
}

// R20: a file per rank, one command to merge them.
TEST_F(DdpBench, TracesOfARunAreMergedIntoOneTimeline) {
  ASSERT_EQ(run_shell(folder_.path(), "DDP_TRACE=traces " DDP_LAUNCH " --cpus 2 -- " DDP_BENCH
                                      " all-reduce --max 1KiB --rounds 5")
                .exit_code,
            0);
  auto const outcome = run("merge-traces traces");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("traces/merged.json: ranks 0, 1"));
  auto const merged = folder_.path() / "traces/merged.json";
  std::set<int> ranks;
  for (auto const& span : spans_of(merged)) ranks.insert(span.at("pid").get<int>());
  EXPECT_THAT(ranks, ::testing::ElementsAre(0, 1));
  EXPECT_THAT(names_of(merged), ::testing::Contains("all_reduce"));

  auto const missing = run("merge-traces nowhere");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("nowhere"));
}

TEST_F(DdpBench, WrongOptionsEndWith64AndOneMessage) {
  for (char const* const arguments :
       {"", "all_reduce", "all-reduce --min 2KiB --max 1KiB", "all-reduce --max 64MB", "reducer --steps x"}) {
    auto const outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 64) << arguments;
    EXPECT_THAT(outcome.err, ::testing::StartsWith("ddp-bench: ")) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
  }
  EXPECT_EQ(run_ranks(2, "all-reduce --factor 1").exit_code, 64);
}

TEST_F(DdpBench, AResultFileThatCannotBeWrittenIsSaidBeforeAnythingIsMeasured) {
  auto const outcome = run_ranks(2, "all-reduce --json missing-folder/results.json");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("missing-folder/results.json: No such file or directory"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("1 KiB")));
}

TEST_F(DdpBench, CheckpointIsTimedBesideAPlainWriteAndLeavesNothingBehind) {
  auto const outcome = run_ranks(2, "checkpoint --size 4MiB --rounds 5 --folder . --json results.json");
  if (outcome.err.find("this build has no OpenSSL") != std::string::npos) GTEST_SKIP() << outcome.err;
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("x the plain rate"));
  auto const report = results();
  EXPECT_EQ(report.at("ranks"), 2);
  auto const& row = report.at("rows").at(0);
  EXPECT_EQ(row.at("bytes"), 4 << 20);
  for (char const* const key : {"plain_s", "checkpoint_s", "stall_ms", "copy_ms"}) expect_positive(row, key);
  EXPECT_DOUBLE_EQ(row.at("rate_over_plain").get<double>(),
                   row.at("plain_s").get<double>() / row.at("checkpoint_s").get<double>());
  for (auto const& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("checkpoint")));
  }
}

}  // namespace
}  // namespace ddp::testing

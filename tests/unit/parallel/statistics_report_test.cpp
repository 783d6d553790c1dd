// R20: the file of DDP_STATISTICS, and what ddp-launch is told.
#include "parallel/ddp/statistics_report.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/launcher/shell.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class StatisticsFile : public ::testing::Test {
 protected:
  [[nodiscard]] std::vector<nlohmann::json> lines_of(std::string const& name) const {
    EXPECT_TRUE(std::filesystem::exists(folder() / name)) << name;
    std::vector<nlohmann::json> all;
    for (std::string const& line : lines(read_file(folder() / name)))
      all.push_back(nlohmann::json::parse(line));
    return all;
  }
  [[nodiscard]] std::filesystem::path const& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

StepStatistics step(std::uint64_t number, std::vector<double> late) {
  StepStatistics each;
  each.step = number;
  each.step_ms = 16;
  each.late_ms = std::move(late);
  return each;
}

TEST_F(StatisticsFile, R20HasALineForEachStepOfEachRankAndWrapper) {
  auto worlds = World::in_process(2, {.timeout = std::chrono::seconds(60), .statistics = folder() / "new"});
  run_ranks(2, [&](int rank) {
    World const& world = worlds[static_cast<std::size_t>(rank)];
    ToyModel model({10, 20});
    DistributedDataParallel ddp(world, model.parameters());
    ToyModel other_model({10, 20});
    DistributedDataParallel other(world, other_model.parameters());
    for (int i = 0; i < 20; ++i) {
      for (DistributedDataParallel* const each : {&ddp, &other}) {
        mark_all(*each);
        each->synchronize();
      }
    }
  });
  for (std::string const name : {"new/rank0.ddp-0.jsonl", "new/rank1.ddp-0.jsonl", "new/rank1.ddp-1.jsonl"}) {
    auto const lines = lines_of(name);
    ASSERT_THAT(lines, SizeIs(20));
    EXPECT_TRUE(lines[0]["forward_ms"].is_null());
    EXPECT_TRUE(lines[0]["step_ms"].is_null());
    EXPECT_EQ(lines[0]["order"], (nlohmann::json{1, 0}));
    EXPECT_EQ(lines[0]["ranks"], (nlohmann::json{0, 1}));
    EXPECT_EQ(lines[9]["membership"], 0);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["step"], i);
      EXPECT_EQ(lines[i]["bytes"], 120);
      EXPECT_EQ(lines[i]["buckets"], 1);
      EXPECT_GE(lines[i]["communication_ms"], 0.0);
      EXPECT_EQ(lines[i].contains("order"), i == 0) << "only where it changes";
      if (i > 0) {
        EXPECT_GE(lines[i]["forward_ms"], 0.0);
      }
    }
    EXPECT_THAT(lines[10]["late_ms"], SizeIs(2));
  }
}

// Rank 1 gives up in the middle of step 10.
TEST_F(StatisticsFile, R20HasTheStepsBeforeAFailure) {
  auto worlds = World::in_process(2, {.timeout = std::chrono::seconds(60), .statistics = folder()});
  run_ranks(2, [&](int rank) {
    ToyModel model({10, 20});
    DistributedDataParallel ddp(worlds[static_cast<std::size_t>(rank)], model.parameters());
    std::string const message = message_of([&] {
      for (int i = 0; i < 20; ++i) {
        ddp.gradient_ready(1);
        if (i == 10 && rank == 1) ddp.abandon_step("the data are broken");
        ddp.gradient_ready(0);
        ddp.synchronize();
      }
    });
    EXPECT_THAT(message, HasSubstr("the data are broken"));
  });
  EXPECT_THAT(lines_of("rank0.ddp-0.jsonl"), SizeIs(10));
  EXPECT_THAT(lines_of("rank1.ddp-0.jsonl"), SizeIs(10));
}

TEST_F(StatisticsFile, R20OneThatCannotBeWrittenIsAnErrorOnEveryRankThatNamesIt) {
  std::ofstream(folder() / "taken") << "a file";
  auto worlds = World::in_process(2, {.timeout = std::chrono::seconds(60), .statistics = folder() / "taken"});
  run_ranks(2, [&](int rank) {
    ToyModel model({10});
    std::string const message = message_of([&] {
      DistributedDataParallel const ddp(worlds[static_cast<std::size_t>(rank)], model.parameters());
    });
    EXPECT_THAT(message, HasSubstr("taken/rank0.ddp-0.jsonl"));
    EXPECT_THAT(message, HasSubstr("choose a folder that this rank can write (DDP_STATISTICS"));
  });
}

TEST_F(StatisticsFile, R26SaysTheMembershipItsRanksAndGoesOnCounting) {
  StatisticsReport report({Rank{0}, Rank{2}}, folder() / "of.jsonl", 3, 41);
  StepStatistics first = step(0, {});
  first.order = {1, 0};
  report.add({first, step(1, {})});
  EXPECT_EQ(report.newest()->step, 42U);
  EXPECT_THAT(lines_of("of.jsonl"), SizeIs(0)) << "whole lines, together";
  report.flush();
  auto const lines = lines_of("of.jsonl");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0]["ranks"], (nlohmann::json{0, 2}));
  EXPECT_EQ(lines[1]["step"], 42);
  EXPECT_EQ(lines[1]["membership"], 3);
}

TEST(StatisticsReport, R20NamesTheSlowestRankOfTheWholeJobOnceForEachStep) {
  StatisticsReport report({Rank{4}, Rank{6}, Rank{2}}, "");
  EXPECT_FALSE(report.newest());
  EXPECT_FALSE(report.take_pace());
  report.add({step(0, {0, 1, 0}), step(1, {0, 3, 4}), step(2, {})});
  EXPECT_EQ(report.newest()->step, 2U);
  auto const pace = report.take_pace();
  ASSERT_TRUE(pace);
  EXPECT_EQ(pace->step_ms, 16);
  EXPECT_EQ(pace->slowest, Rank{6});
  EXPECT_EQ(pace->late_ms, 2);
  EXPECT_FALSE(report.take_pace());
}

}  // namespace
}  // namespace ddp::testing

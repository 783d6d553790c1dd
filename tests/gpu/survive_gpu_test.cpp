// Ranks with GPUs that go on when one is lost (R26): on one each, with NCCL, and on one that they share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

#include "ddp/core/text.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

enum class Cards { one_each, shared };

class SurvivingOnGpus : public ::testing::TestWithParam<Cards> {
 protected:
  static int ranks() { return GetParam() == Cards::shared ? 3 : 2; }
  static Words launch(Words const& options, Words const& command) {
    Words words{"--gpus", "0,1", "--survive", "--no-log-files"};
    if (GetParam() == Cards::shared) words = {"--gpus", "0", "--virtual", "3", "--survive", "--no-log-files"};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  /// Long enough for a kill in the third epoch, or for a new process to come, which takes seconds.
  static int epochs(bool is_replaced) {
    if (GetParam() == Cards::shared) return is_replaced ? 40 : 12;
    return is_replaced ? 400 : 30;
  }
  static Words train_mlp(Words const& options = {}, int epochs = SurvivingOnGpus::epochs(false)) {
    return launch(options, {TRAIN_MLP, "--survive", "--synthetic", "--limit", "16000", "--hidden", "64",
                            "--batch", "64", "--epochs", text(epochs)});
  }
};

std::size_t count_of(std::string const& what, std::string const& in) {
  std::size_t count = 0;
  for (auto at = in.find(what); at != std::string::npos; at = in.find(what, at + 1)) ++count;
  return count;
}

// The kill comes while the host of the killed rank, and those of the others, are ahead of their GPUs.
TEST_P(SurvivingOnGpus, R26NoWeightHasAPartOfABrokenStep) {
  for (std::string const how :
       {"skip", "await", "graph", "join", "buckets", "slices", "graph,buckets", "graph,slices"}) {
    for (int const step : {1, 7, 60}) {
      TemporaryFolder const folder;
      LaunchedJob job(launch({}, {DDP_REBUILD_RANK, how, text(step), "1", folder.path().string()}));
      EXPECT_EQ(job.exit_code(), 0) << how << ' ' << step << '\n' << job.err();
      auto const left = static_cast<std::size_t>(ranks() - 1);
      EXPECT_EQ(count_of("goes on after step", job.out()), left) << how << ' ' << step << '\n' << job.out();
      EXPECT_EQ(count_of("all weights are right", job.out()), left) << how << ' ' << step << '\n'
                                                                    << job.err();
    }
  }
}

TEST_P(SurvivingOnGpus, R26ANewProcessHasTheWeightsAndTheGpuOfTheLostOne) {
  for (std::string const how : {"skip", "graph", "join", "buckets", "slices", "graph,slices"}) {
    TemporaryFolder const folder;
    LaunchedJob job(
        launch({"--replace", "1"}, {DDP_REBUILD_RANK, how, "60", text(ranks()), folder.path().string()}));
    EXPECT_EQ(job.exit_code(), 0) << how << '\n' << job.err();
    EXPECT_EQ(count_of("all weights are right", job.out()), static_cast<std::size_t>(ranks())) << job.err();
    EXPECT_THAT(job.err(), ContainsRegex("a new process for rank 1 \\(pid [0-9]+, cuda:1"));
  }
}

TEST_P(SurvivingOnGpus, R26ATrainingGoesOnWithoutAKilledRank) {
  for (std::size_t const victim : {1U, 0U}) {  // the second with recorded steps
    auto words = train_mlp();
    if (victim == 0) words.emplace_back("--graph");
    LaunchedJob job(words);
    ASSERT_TRUE(job.shows(text("epoch  2/", epochs(false)), 60s));
    auto const killed = std::chrono::steady_clock::now();
    send_to_rank(job, "train_mlp", victim, SIGKILL);
    ASSERT_TRUE(job.shows("going on with"));
    EXPECT_LT(std::chrono::steady_clock::now() - killed, 2s);
    EXPECT_EQ(job.exit_code(120s), 0) << job.err();
    EXPECT_THAT(job.out(), ContainsRegex(text("final: test accuracy [0-9.]+, ", ranks() - 1, " rank")));
    EXPECT_THAT(job.err(), ContainsRegex(text("went on without rank ", victim, " \\(pid [0-9]+, cuda:")));
  }
}

TEST_P(SurvivingOnGpus, R26ATrainingTakesANewProcessIn) {
  LaunchedJob job(train_mlp({"--replace", "1"}, epochs(true)));
  ASSERT_TRUE(job.shows(text("/", epochs(true)), 60s));
  send_to_rank(job, "train_mlp", 1, SIGKILL);
  ASSERT_TRUE(job.shows(text("going on with ", ranks(), " ranks"), 60s));
  EXPECT_EQ(job.exit_code(300s), 0) << job.err();
  EXPECT_THAT(job.out(), ContainsRegex(text("final: test accuracy [0-9.]+, ", ranks(), " ranks")));
}

TEST_P(SurvivingOnGpus, R26AStoppedRankIsEndedAndTheOthersGoOn) {
  LaunchedJob job(train_mlp(), {.environment = {"DDP_TIMEOUT=5"}});
  ASSERT_TRUE(job.shows(text("epoch  2/", epochs(false)), 60s));
  send_to_rank(job, "train_mlp", 1, SIGSTOP);
  EXPECT_EQ(job.exit_code(120s), 0) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("did not come to the others' World::rebuild() in time"),
                               Not(HasSubstr("NCCL's abort has not returned"))));
}

INSTANTIATE_TEST_SUITE_P(Cards, SurvivingOnGpus, ::testing::Values(Cards::one_each, Cards::shared),
                         [](auto const& each) { return each.param == Cards::shared ? "Shared" : "OneEach"; });

}  // namespace
}  // namespace ddp::testing

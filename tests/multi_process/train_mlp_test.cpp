// train_mlp and hello_all_reduce as a user runs them: alone, and under ddp-launch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

std::size_t count_of(std::string const& text, std::string const& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class TrainMlp : public ::testing::Test {
 protected:
  // With 0 ranks: without a launcher. These are CPU ranks, also where there are GPUs.
  [[nodiscard]] static std::string launched(int ranks, std::string const& program) {
    if (ranks == 0) return "CUDA_VISIBLE_DEVICES= exec " + program;
    return text("exec ", DDP_LAUNCH, " --no-prefix --log-dir logs --cpus ", ranks, " -- ", program);
  }
  [[nodiscard]] ShellOutcome run(int ranks, std::string const& arguments) const {
    return run_shell(folder_.path(), launched(ranks, text(TRAIN_MLP, " ", arguments)));
  }
  [[nodiscard]] std::vector<nlohmann::json> train(int ranks, std::string const& arguments) const {
    auto const outcome = run(ranks, "--synthetic --log-json log.json " + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<nlohmann::json> records;
    for (auto const& line : lines(read_file(folder_.path() / "log.json"))) {
      records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }

  TemporaryFolder folder_;
};

void expect_close(nlohmann::json const& expected, nlohmann::json const& found, char const* what) {
  double const a = expected.at(what).get<double>();
  double const b = found.at(what).get<double>();
  EXPECT_NEAR(a, b, 1e-5 * std::abs(a)) << what << " of " << expected.dump();
}

// Invariant 5, end to end: losses and parameters of any number of ranks are those of one.
class AnyNumberOfRanks : public TrainMlp, public ::testing::WithParamInterface<int> {
 protected:
  void expect_same_training(std::string const& arguments, std::size_t epochs) const {
    auto const alone = train(0, arguments);
    auto const found = train(GetParam(), arguments);
    ASSERT_THAT(alone, SizeIs(epochs + 1));
    ASSERT_THAT(found, SizeIs(epochs + 1));
    for (std::size_t i = 0; i < epochs; ++i) {
      expect_close(alone[i], found[i], "loss");
      expect_close(alone[i], found[i], "test_loss");
      EXPECT_EQ(alone[i].at("steps"), found[i].at("steps"));
      EXPECT_EQ(alone[i].at("learning_rate"), found[i].at("learning_rate"));
    }
    EXPECT_EQ(found.back().at("ranks"), GetParam());
    EXPECT_EQ(found.back().at("device"), "cpu");
    auto const& expected = alone.back().at("parameters");
    auto const& parameters = found.back().at("parameters");
    ASSERT_EQ(parameters.size(), expected.size());
    ASSERT_GE(parameters.size(), 2U);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(parameters[i].at("name"), expected[i].at("name"));
      expect_close(expected[i], parameters[i], "norm");
    }
  }
};

TEST_P(AnyNumberOfRanks, DoesTheSameTraining) {
  // 2050 images in batches of 100: shards of unequal size for 3 ranks, and a last batch of 50.
  expect_same_training("--limit 2050 --hidden 32,16 --batch 100 --epochs 2 --seed 3", 2);
}

TEST_P(AnyNumberOfRanks, DoesTheSameTrainingThoughSomeGetNothing) {
  expect_same_training("--limit 31 --hidden 8 --batch 3 --epochs 2", 2);
}

INSTANTIATE_TEST_SUITE_P(Cpu, AnyNumberOfRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(AnyNumberOfRanks, R25AShardedOptimizerGivesTheSameBits) {
  for (char const* const arguments : {"--limit 2050 --hidden 32,16 --batch 100 --epochs 2 --seed 3 --graph",
                                      "--limit 31 --hidden 8 --batch 3 --epochs 2"}) {
    auto const plain = train(GetParam(), arguments);
    auto const sharded = train(GetParam(), text(arguments, " --shard"));
    EXPECT_EQ(sharded.back().at("parameters"), plain.back().at("parameters")) << arguments;
    EXPECT_EQ(sharded.back().at("test_loss"), plain.back().at("test_loss")) << arguments;
  }
}

TEST_F(TrainMlp, LearnsWhatCanBeLearnt) {
  auto const records = train(2, "--limit 6000 --hidden 64 --batch 128 --epochs 6");
  EXPECT_LT(records[5].at("loss").get<double>(), 0.8 * records[0].at("loss").get<double>());
  EXPECT_GT(records.back().at("test_accuracy").get<double>(), 0.6);
}

TEST_F(TrainMlp, AnotherSeedIsAnotherTraining) {
  auto const one = train(0, "--limit 200 --hidden 8 --epochs 1 --seed 1");
  auto const two = train(0, "--limit 200 --hidden 8 --epochs 1 --seed 2");
  EXPECT_NE(one.back().at("parameters"), two.back().at("parameters"));
}

TEST_F(TrainMlp, EndsWithTheFinalLineAndShowsPlainLinesInAPipe) {
  for (int const ranks : {0, 2}) {
    auto const outcome = run(ranks, "--synthetic --limit 300 --hidden 8 --batch 100 --epochs 2");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    auto const out = lines(outcome.out);
    ASSERT_THAT(out, SizeIs(3)) << outcome.out;
    EXPECT_THAT(
        out[0],
        MatchesRegex("epoch 1/2  step 3/3  loss [0-9.]+  [0-9]+ samples/s  [0-9:]+ left  test 0\\.[0-9]{4}"));
    EXPECT_THAT(out[1], HasSubstr("epoch 2/2"));
    EXPECT_THAT(out[2], MatchesRegex(text("final: test accuracy 0\\.[0-9]{4}, ", ranks == 0 ? 1 : ranks,
                                          " ranks, cpu, [0-9]+\\.[0-9] s")));
    EXPECT_THAT(outcome.out, Not(HasSubstr("\r")));
  }
}

TEST_F(TrainMlp, ShowsALiveLineWhereTheLauncherSaysThatThereIsATerminal) {
  auto const outcome =
      run_shell(folder_.path(), text("CUDA_VISIBLE_DEVICES= DDP_TERMINAL=1 exec ", TRAIN_MLP,
                                     " --synthetic --limit 30000 --hidden 64 --batch 20 --epochs 1"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(" left\r"));
  EXPECT_THAT(lines(outcome.out).back(), MatchesRegex("final: test accuracy .*"));
}

TEST_F(TrainMlp, RefusesWrongOptionsWith64AndOneMessage) {
  struct Case {
    char const* arguments;
    char const* message;
  };
  for (Case const& wrong :
       {Case{"--bogus", "unrecognised option '--bogus'"}, Case{"--epoch 3", "unrecognised option '--epoch'"},
        Case{"--epochs 0", "--epochs: expected a number from 1 on, found \"0\""},
        Case{"--resume", "--resume needs --checkpoint DIR, found none"},
        Case{"--checkpoint-every 5", "--checkpoint-every needs --checkpoint DIR"},
        Case{"--survive --shard", "--survive with --shard needs --checkpoint DIR, found none"},
        Case{"--checkpoint c --checkpoint-every 0", "--checkpoint-every: expected a number from 1 on"},
        Case{"--batch -1", "--batch: expected a number from 1 on, found \"-1\""},
        Case{"--batch 1e3", "found \"1e3\""},
        Case{"--seed -1", "--seed: expected a number from 0 to 2^64 - 1, found \"-1\""},
        Case{"--lr nan", "--lr: expected a number above 0, found \"nan\""},
        Case{"--lr 0", "--lr: expected a number above 0"},
        Case{"--hidden 32,,16", "--hidden: expected widths"},
        Case{"--hidden ''", "--hidden: expected widths"},
        Case{"--data . --synthetic", "contradict each other"}, Case{"--epochs 1 --epochs 2", "--epochs"},
        Case{"somewhere", "found \"somewhere\""}}) {
    SCOPED_TRACE(wrong.arguments);
    auto const outcome = run(0, wrong.arguments);
    EXPECT_EQ(outcome.exit_code, 64);
    EXPECT_THAT(outcome.err, HasSubstr(wrong.message));
    EXPECT_THAT(lines(outcome.err), SizeIs(1));
    EXPECT_EQ(outcome.out, "");
  }
  auto const outcome = run(3, "--bogus");
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_EQ(count_of(outcome.err, "\ntrain_mlp: ") + (outcome.err.rfind("train_mlp: ", 0) == 0 ? 1 : 0), 1U)
      << outcome.err;
}

TEST_F(TrainMlp, MissingDataIs66OnEveryRankAndSaidOnce) {
  for (int const ranks : {0, 1, 3}) {
    auto const outcome = run(ranks, "--data nowhere");
    EXPECT_EQ(outcome.exit_code, 66);
    std::string const err = "\n" + outcome.err;
    EXPECT_EQ(count_of(err, "\ntrain_mlp: expected a folder with the data at nowhere, found none"), 1U)
        << err;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(TrainMlp, DamagedDataIs65) {
  std::ofstream(folder_.path() / "train-images-idx3-ubyte.gz") << "not at all";
  for (int const ranks : {0, 2}) {
    auto const outcome = run(ranks, "--data .");
    EXPECT_EQ(outcome.exit_code, 65);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("train-images-idx3-ubyte.gz"),
                                   HasSubstr("expected magic number"), HasSubstr("found 0x6e6f7420")));
  }
}

TEST_F(TrainMlp, ARankThatAloneHasNoDataIsNamedAndNobodyHangs) {
  auto const outcome = run_shell(
      folder_.path(), launched(3, text("sh -c 'test $RANK = 2 && exec ", TRAIN_MLP, " --data nowhere; exec ",
                                       TRAIN_MLP, " --synthetic --limit 100'")));
  EXPECT_EQ(outcome.exit_code, 66);
  EXPECT_THAT(outcome.err,
              HasSubstr("train_mlp: rank 2: expected a folder with the data at nowhere, found none"));
}

TEST_F(TrainMlp, ALogThatCannotBeWrittenIs73BeforeAnyTraining) {
  auto const outcome = run(2, "--synthetic --limit 100 --log-json nowhere/log.json");
  EXPECT_EQ(outcome.exit_code, 73);
  EXPECT_THAT(outcome.err, HasSubstr("nowhere/log.json cannot be written: No such file or directory"));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(TrainMlp, RanksWithDifferentNetworksAreToldTheDifferenceR9) {
  auto const outcome =
      run_shell(folder_.path(),
                launched(2, text("sh -c 'exec ", TRAIN_MLP, " --synthetic --limit 100 --hidden 3$RANK'")));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "it must not hang";
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("\"fc1.weight\""), HasSubstr("f32[31,784]"), HasSubstr("f32[30,784]")));
}

TEST_F(TrainMlp, HelpListsTheOptionsOnce) {
  for (int const ranks : {0, 2}) {
    auto const outcome = run(ranks, "--help");
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(count_of(outcome.out, "--log-json FILE"), 1U);
  }
}

TEST_F(TrainMlp, TheReadmesProgramRunsAloneAndOnSeveralRanks) {
  for (int const ranks : {0, 1, 3}) {
    auto const outcome = run_shell(folder_.path(), launched(ranks, FIRST_STEPS));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, text("trained on ", ranks == 0 ? 1 : ranks, " ranks\n"));
  }
}

TEST_F(TrainMlp, TheGuidesProgramWithGradientsInPlaceLearnsTheSameOnAnyNumberOfRanks) {
  for (int const ranks : {0, 1, 3}) {
    auto const outcome = run_shell(folder_.path(), launched(ranks, IN_PLACE));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "w = 2, -1, 3, b = 1; 1 message a step\n")
        << "neighbours in memory travel together";
  }
}

TEST_F(TrainMlp, R25TheProgramWithArraysOfPointersLearnsWithAPartOfTheOptimizerOnEachRank) {
  for (auto const& [ranks, bytes] : std::map<int, std::string>{{0, "16.0"}, {1, "16.0"}, {3, "8.0"}}) {
    auto const outcome = run_shell(folder_.path(), launched(ranks, SHARDED));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.out,
              text("learnt 61 of 61; ", bytes, " bytes a parameter: 2 + 2 + 12/", std::max(ranks, 1), "\n"));
  }
}

// What rank 0 says of its start: the parts make the whole.
void expect_start_report(nlohmann::json const& report, int ranks, std::string const& backend) {
  EXPECT_EQ(report.at("ranks"), ranks);
  EXPECT_EQ(report.at("device"), "cpu");
  EXPECT_EQ(report.at("backend"), backend);
  double sum = 0;
  for (char const* const part :
       {"launcher", "control_plane", "device_start", "communicator", "first_all_reduce"}) {
    EXPECT_GE(report.at(part).get<double>(), 0.0) << part;
    sum += report.at(part).get<double>();
  }
  EXPECT_NEAR(report.at("total").get<double>(), sum, 1e-6);
  EXPECT_LT(sum, 60.0);
}

TEST_F(TrainMlp, HelloAllReduceAddsUpRanksAndSaysHowLongItsStartTook) {
  constexpr char const* kStart =
      "[0-9.]+ s from the command to the first all-reduce: launcher [0-9.]+, control plane [0-9.]+, cpu "
      "[0-9.]+, s[a-z]+ [0-9.]+, all-reduce [0-9.]+";
  for (int const ranks : {0, 4}) {
    auto const outcome =
        run_shell(folder_.path(), launched(ranks, text(HELLO_ALL_REDUCE, " --json start.json")));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<::testing::Matcher<std::string>> expected{MatchesRegex(kStart)};
    int const size = std::max(ranks, 1);
    std::string const backend = ranks == 0 ? "solo" : "shm";
    for (int rank = 0; rank < size; ++rank) {
      expected.emplace_back(text("rank ", rank, " of ", size, " on cpu:0 (", backend, "): counted ", size,
                                 "; the sum of all ranks is ", size * (size - 1) / 2));
    }
    EXPECT_THAT(lines(outcome.out), ::testing::UnorderedElementsAreArray(expected));
    expect_start_report(nlohmann::json::parse(read_file(folder_.path() / "start.json")), size, backend);
  }
  EXPECT_EQ(run_shell(folder_.path(), launched(0, text(HELLO_ALL_REDUCE, " --jsn x"))).exit_code, 64);
}

}  // namespace
}  // namespace ddp::testing

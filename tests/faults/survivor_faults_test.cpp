// Programs that make mistakes with World::rebuild(), under ddp-launch --survive (R26).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/launcher/launched_job.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> surviving(std::vector<std::string> const& options, std::string const& fault,
                                   std::string const& who) {
  std::vector<std::string> words{"--survive", "--cpus", "4", "--no-log-files"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", DDP_SURVIVING_RANK, fault, who});
  return words;
}

TEST(SurvivorFaults, R26WhoSwallowsALossIsOneWhateverItExitsWith) {
  LaunchedJob job(surviving({}, "swallow", "1"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("went on without rank 1 \\(pid [0-9]+, cpu:0\\), which exited with code "
                            "0 without World::rebuild\\(\\): peer_lost: .*rank 3 is gone"));
  EXPECT_THAT(job.err(), ContainsRegex("went on without rank 3 .*, which was killed by signal 9"));
}

TEST(SurvivorFaults, R26AJobOfWhichAllSwallowALossFails) {
  LaunchedJob job(surviving({}, "swallow", "all"));
  EXPECT_EQ(job.exit_code(), 137);
  EXPECT_THAT(job.err(), AllOf(ContainsRegex("first cause: rank 3 .* was killed by signal 9"),
                               HasSubstr("exited with code 0 without World::rebuild(): peer_lost"),
                               Not(HasSubstr("went on without"))));
}

TEST(SurvivorFaults, R26WhoRebuildsAloneGoesOnAlone) {
  LaunchedJob job(surviving({}, "alone", "1"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  for (char const* const other : {"0", "2", "3"}) {
    EXPECT_THAT(job.err(),
                ContainsRegex(std::string("went on without rank ") + other +
                              " .*, which was killed by signal 6 .*: aborted: the group was ended by rank 1: "
                              ".*this rank lost its patience"));
  }
}

TEST(SurvivorFaults, R26WhoRebuildsAloneWhereMoreAreNeededIsToldHowManyAreLeft) {
  LaunchedJob job(surviving({"--min-ranks", "3"}, "alone", "1"));
  EXPECT_EQ(job.exit_code(), 134);
  EXPECT_THAT(job.err(), AllOf(ContainsRegex("first cause: rank 1 "),
                               HasSubstr("2 of 4 ranks are left, and --min-ranks (DDP_MIN_RANKS) is 3"),
                               ContainsRegex("ranks 0,2-3: each was .*this rank lost its patience")));
}

TEST(SurvivorFaults, R26WhoNeverComesIsEndedByTheDeadline) {
  LaunchedJob job(surviving({}, "never-comes", "2"), {.environment = {"DDP_TIMEOUT=1"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("rank 2 \\(pid [0-9]+, cpu:0\\) did not come to the others' "
                                       "World::rebuild\\(\\) in time: killing it"));
}

TEST(SurvivorFaults, R26ANewProcessThatExitsWithZeroBeforeItTakesPartIsALoss) {
  LaunchedJob job(surviving({"--replace", "5"}, "other-program", "none"));
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(
      job.err(),
      AllOf(ContainsRegex("rank 3 \\(pid [0-9]+, cpu:0\\) exited with code 0 before it took part: 3 of "
                          "4 ranks are left"),
            HasSubstr("no new process: 2 in a row ended before their first step"),
            ContainsRegex("went on without rank 3 .*, which exited with code 0 before it took part")));
}

}  // namespace
}  // namespace ddp::testing

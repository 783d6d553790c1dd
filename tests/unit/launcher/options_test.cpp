#include "launcher/options/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "core/suggestion.hpp"
#include "ddp/core/text.hpp"
#include "launcher/options/help.hpp"
#include "support/launcher/refusal.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

TEST(Options, TheProgramAndItsArgumentsAreLeftAlone) {
  auto const plain =
      parse_options(Words{"--cpus", "2", "./train", "--cpus", "9", "--unknown", "--", "-x", ""});
  EXPECT_EQ(plain.cpus, 2);
  EXPECT_THAT(plain.command, ElementsAre("./train", "--cpus", "9", "--unknown", "--", "-x", ""));
  EXPECT_THAT(parse_options(Words{"--", "--odd-name", "a"}).command, ElementsAre("--odd-name", "a"));
  EXPECT_THAT(parse_options(Words{"-", "a"}).command, ElementsAre("-", "a"));
}

TEST(Options, ValuesStandApartOrBehindAnEqualsSign) {
  auto const options = parse_options(Words{"--gpus=0,1", "--log-dir", "a b", "--grace=1.5", "--failure-grace",
                                           "0", "--only-rank", "1", "--no-prefix", "--tee=err", "ls"});
  EXPECT_EQ(options.gpus, "0,1");
  EXPECT_EQ(options.log_dir, "a b");
  EXPECT_EQ(options.grace, milliseconds(1500));
  EXPECT_EQ(options.failure_grace, milliseconds(0));
  EXPECT_EQ(options.only_rank, Rank{1});
  EXPECT_FALSE(options.prefix);
  EXPECT_FALSE(options.show_stdout);
  EXPECT_TRUE(options.show_stderr);
}

TEST(Options, DefaultsAreTheDocumentedOnes) {
  auto const options = parse_options(Words{"ls"});
  EXPECT_EQ(options.failure_grace, milliseconds(5000));
  EXPECT_EQ(options.grace, milliseconds(30000));
  EXPECT_FALSE(options.cpus || options.gpus || options.log_dir || options.only_rank);
  EXPECT_TRUE(options.log_files && options.prefix && options.show_stdout && options.show_stderr);
  EXPECT_FALSE(options.quiet || options.dry_run);
}

TEST(Options, AMinusSignCanBeginAValue) {
  EXPECT_EQ(parse_options(Words{"--gpus", "-1", "ls"}).gpus, "-1") << "refused later, with what is visible";
  EXPECT_THAT(refusal_of_options({"--cpus", "-1", "ls"}), HasSubstr("found \"-1\""));
}

TEST(Options, UnknownOnesAreRefusedWithTheNearest) {
  EXPECT_THAT(refusal_of_options({"--cpu", "2", "ls"}),
              HasSubstr("unknown option --cpu; did you mean --cpus?"));
  EXPECT_THAT(refusal_of_options({"--log_dirr=x", "ls"}),
              HasSubstr("unknown option --log-dirr; did you mean --log-dir?"));
  EXPECT_THAT(refusal_of_options({"--gup", "0", "ls"}), HasSubstr("did you mean --gpus?"));
  EXPECT_THAT(refusal_of_options({"-n", "2", "ls"}), HasSubstr("unknown option -n; the number of ranks"));
  EXPECT_THAT(refusal_of_options({"--=x", "ls"}), HasSubstr("unknown option --"));
  std::string const far = refusal_of_options({"--zzzzzzzz", "ls"});
  EXPECT_THAT(far, HasSubstr("unknown option --zzzzzzzz"));
  EXPECT_EQ(far.find("did you mean"), std::string::npos);
}

// L12
TEST(Options, CheckIsOfThisHostAndOfNoProgram) {
  Options const check = parse_options(Words{"--check", "--gpus", "1,0", "--virtual", "2", "--json"});
  EXPECT_TRUE(check.check);
  EXPECT_TRUE(check.json);
  EXPECT_EQ(check.gpus, "1,0");
  EXPECT_EQ(check.ranks_per_device, 2);
  EXPECT_FALSE(parse_options(Words{"--check"}).json);
  EXPECT_THAT(refusal_of_options({"--check", "ls"}), HasSubstr("expected no program, found \"ls\""));
  EXPECT_THAT(refusal_of_options({"--json", "ls"}), HasSubstr("--json is of --check and --list-devices"));
  EXPECT_TRUE(parse_options(Words{"--list-devices", "--gpus", "1"}).list_devices);
  EXPECT_THAT(refusal_of_options({"--list-devices", "ls"}), HasSubstr("--list-devices starts nothing"));
  EXPECT_THAT(refusal_of_options({"--list-devices", "--check"}), HasSubstr("contradict"));
  EXPECT_THAT(refusal_of_options({"--check", "--dry-run"}), HasSubstr("contradict"));
  for (Words const& hosts : {Words{"--check", "--hostfile", "hosts"}, Words{"--check", "--host", "a,b"},
                             Words{"--check", "--nnodes", "2"}, Words{"--check", "--engine", "mpi"}}) {
    EXPECT_THAT(refusal_of_options(hosts),
                HasSubstr("mpirun --hostfile FILE --map-by ppr:1:node --bind-to none ddp-launch --check"));
  }
}

TEST(Options, ContradictionsAreRefused) {
  for (Words const& words : std::vector<Words>{{"--gpus", "0", "--cpus", "1", "ls"},
                                               {"--virtual", "2", "--cpus", "1", "ls"},
                                               {"--log-dir", "x", "--no-log-files", "ls"},
                                               {"--quiet", "--tee", "both", "ls"},
                                               {"--quiet", "--only-rank", "0", "ls"}}) {
    EXPECT_THAT(refusal_of_options(words), HasSubstr("contradict"));
  }
}

TEST(Options, ValuesOutOfRangeAreRefusedWithTheRange) {
  EXPECT_THAT(refusal_of_options({"--cpus", "0", "ls"}), HasSubstr("from 1 to 1024, found \"0\""));
  EXPECT_THAT(refusal_of_options({"--cpus", "1025", "ls"}), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(refusal_of_options({"--cpus", "99999999999", "ls"}), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(refusal_of_options({"--cpus", "2x", "ls"}), HasSubstr("found \"2x\""));
  EXPECT_THAT(refusal_of_options({"--cpus", "", "ls"}),
              HasSubstr("--cpus needs a value, found an empty word"));
  EXPECT_THAT(refusal_of_options({"--cpus=", "ls"}), HasSubstr("--cpus needs a value, found an empty word"));
  EXPECT_THAT(refusal_of_options({"--only-rank", "-1", "ls"}), HasSubstr("--only-rank"));
  EXPECT_THAT(refusal_of_options({"--virtual", "0", "ls"}), HasSubstr("--virtual"));
  EXPECT_THAT(refusal_of_options({"--grace", "-1", "ls"}), HasSubstr("--grace expects seconds"));
  EXPECT_THAT(refusal_of_options({"--grace", "nan", "ls"}), HasSubstr("--grace expects seconds"));
  EXPECT_THAT(refusal_of_options({"--failure-grace", "5s", "ls"}), HasSubstr("found \"5s\""));
  EXPECT_THAT(refusal_of_options({"--tee", "4", "ls"}), HasSubstr("--tee expects none, out, err, both"));
  EXPECT_THAT(refusal_of_options({"--log-dir", "", "ls"}), HasSubstr("--log-dir"));
}

TEST(Options, IncompleteOrRepeatedOnesAreRefused) {
  EXPECT_THAT(refusal_of_options({}), HasSubstr("no program given"));
  EXPECT_THAT(refusal_of_options({"--cpus", "2"}), HasSubstr("no program given"));
  EXPECT_THAT(refusal_of_options({"--"}), HasSubstr("no program given"));
  EXPECT_THAT(refusal_of_options({""}), HasSubstr("empty word"));
  EXPECT_THAT(refusal_of_options({"--cpus"}), HasSubstr("--cpus needs a value"));
  EXPECT_THAT(refusal_of_options({"--quiet=1", "ls"}), HasSubstr("--quiet takes no value"));
  EXPECT_THAT(refusal_of_options({"--cpus", "2", "--cpus", "3", "ls"}),
              HasSubstr("option '--cpus' cannot be specified more than once"));
}

TEST(Options, TeeCountsAsTorchrunDoes) {
  auto const shown = [](char const* which) {
    auto const options = parse_options(Words{"--tee", which, "ls"});
    return std::pair{options.show_stdout, options.show_stderr};
  };
  EXPECT_EQ(shown("0"), std::pair(false, false));
  EXPECT_EQ(shown("1"), std::pair(true, false));
  EXPECT_EQ(shown("2"), std::pair(false, true));
  EXPECT_EQ(shown("3"), std::pair(true, true));
  EXPECT_EQ(shown("none"), shown("0"));
  EXPECT_EQ(shown("both"), shown("3"));
}

TEST(Options, HelpNamesEveryOptionAndNeedsNoProgram) {
  EXPECT_TRUE(parse_options(Words{"--help"}).help);
  EXPECT_TRUE(parse_options(Words{"-h"}).help);
  EXPECT_TRUE(parse_options(Words{"--version"}).version);
  for (char const* name :
       {"--cpus", "--gpus", "--virtual", "--log-dir", "--no-log-files", "--tee", "--only-rank", "--no-prefix",
        "--quiet", "--failure-grace", "--grace", "--dry-run", "--version", "--nproc-per-node", "--standalone",
        "--module", "--timestamps", "--no-line-buffering", "--events"}) {
    EXPECT_THAT(help_text(), HasSubstr(name));
  }
}

TEST(Options, HelpFitsATerminalAndSaysEachThingInASentenceOrTwo) {
  Classic<std::istringstream> help(help_text());
  for (std::string line; std::getline(help, line);) {
    EXPECT_LE(line.size(), 82U) << line;  // 80 columns; the dots of "arguments…" are one, of three bytes
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
  for (HelpSection const& section : option_help()) {
    for (HelpEntry const& entry : section.entries) {
      EXPECT_TRUE(entry.words.ends_with('.') || entry.words.ends_with(".)")) << entry.words;
      EXPECT_LE(std::ranges::count(entry.words, '.'), 3) << entry.words;
    }
  }
}

TEST(Options, WordsAreWrappedAtBlanksAndNeverCut) {
  EXPECT_THAT(wrapped("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(wrapped("one two three", 6), ElementsAre("one", "two", "three"));
  EXPECT_THAT(wrapped("everything", 3), ElementsAre("everything"));
  EXPECT_THAT(wrapped("", 3), ElementsAre(""));
}

TEST(Options, R26SurvivalIsAskedForWithTheFewestThatMayGoOn) {
  EXPECT_FALSE(parse_options(Words{"ls"}).survive);
  auto const options = parse_options(Words{"--survive", "--min-ranks", "3", "--max-restarts", "2", "ls"});
  EXPECT_TRUE(options.survive);
  EXPECT_EQ(options.min_ranks, 3);
  EXPECT_EQ(parse_options(Words{"--survive", "ls"}).min_ranks, 1);
  EXPECT_EQ(parse_options(Words{"--survive", "ls"}).replacements, 0);
  EXPECT_EQ(parse_options(Words{"--survive", "--replace", "5", "ls"}).replacements, 5);
  EXPECT_THAT(refusal_of_options({"--replace", "2", "ls"}), HasSubstr("--replace is of --survive"));
  EXPECT_THAT(refusal_of_options({"--min-ranks", "2", "ls"}), HasSubstr("--min-ranks is of --survive"));
  for (Words const& hosts : {Words{"--host", "a,b"}, Words{"--hostfile", "hosts"}, Words{"--nnodes", "2"}}) {
    EXPECT_THAT(refusal_of_options({"--survive", hosts[0], hosts[1], "ls"}),
                HasSubstr("--survive and " + hosts[0] +
                          " contradict each other: mpirun ends every rank when one is lost"));
  }
  EXPECT_THAT(refusal_of_options({"--survive", "--engine", "mpi", "ls"}),
              HasSubstr("--survive and --engine mpi contradict each other"));
}

TEST(Suggestion, CountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("same", "same"), 0U);
}

}  // namespace
}  // namespace ddp::launcher

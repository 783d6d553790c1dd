// What README and docs/ show of ddp-launch's and the library's output is what they print: each line comes
// from a run, but for numbers, names and paths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "launcher/report/oom_kills.hpp"
#include "support/launcher/launched_job.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct ShownLine {
  std::string where;  ///< "README.md:93"
  std::string words;
};

/// Of one page, the lines between fences without a language that begin as lines of a job do.
void add_shown_lines(fs::path const& page, std::vector<ShownLine>& shown) {
  static std::regex const of_a_job(R"(\[(ddp-launch|ddp|[0-9]+)\] .*)");
  std::ifstream in(page);
  bool fenced = false;
  bool without_language = false;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.starts_with("```")) {
      fenced = !fenced;
      without_language = fenced && line == "```";
    } else if (without_language && std::regex_match(line, of_a_job)) {
      shown.push_back({page.filename().string() + ":" + std::to_string(number), line});
    }
  }
}

/// A pattern for lines that differ from this one in numbers, paths, hosts and what "…" stands for only.
std::regex pattern_of(std::string words) {
  auto const replace = [&](char const* what, char const* by) {
    words = std::regex_replace(words, std::regex(what), by);
  };
  replace(R"([\[\](){}.*+?^$|\\])", R"(\$&)");
  replace(R"([^ ]*/[^ ]*[a-z*][^ ]*)", "@PATH@");
  replace("\u2026", ".*");
  replace("[0-9]+(\\\\\\.[0-9]+)?", "@N@");
  replace("c(uda|pu):@N@", "c(uda|pu):@N@");
  replace(R"(\\\) on [^ ]+ (was|exited))", R"(\) on [^ ]+ $1)");
  replace("@PATH@", "[^ ]+");
  replace("@N@", "[0-9]+(\\.[0-9]+)?");
  return std::regex(words);
}

Words training(int ranks, std::string const& fault, Words options) {
  options.insert(options.end(), {"--cpus", std::to_string(ranks), "--", DDP_TRAINING_RANK, fault, "1"});
  return options;
}

/// All lines of runs in which what the pages show happens.
std::vector<std::string> printed_lines() {
  std::vector<std::string> printed;
  auto const run = [&](Words const& words, Words environment = {}) {
    LaunchedJob job(words, {.environment = std::move(environment)});
    job.exit_code();
    for (std::string const& line : lines(job.out() + job.err())) {
      printed.push_back(line);
      printed.push_back(std::regex_replace(line, std::regex("^\\[[0-9]+\\] "), ""));  // without ddp-launch
    }
  };
  run(training(2, "kill-in-all-reduce", {"--log-dir", "logs"}));
  run(training(3, "slow", {"--no-log-files"}), {"DDP_LOG=info"});
  run(training(3, "stop", {"--no-log-files", "--failure-grace", "1"}), {"DDP_TIMEOUT=1.5"});
  run(training(2, "slow-steps", {"--no-log-files"}), {"DDP_STATISTICS=statistics"});
  run({"--survive", "--cpus", "4", "--no-log-files", "--", DDP_SURVIVING_RANK, "other-program", "none"},
      {"DDP_STATISTICS=statistics"});
  run(shell_ranks(2, "[ $RANK = 1 ] && { echo words >&2; kill -KILL $$; }; exec sleep 60",
                  {"--failure-grace", "0"}));
  return printed;
}

TEST(ShownOutput, IsWhatRunsPrint) {
  std::vector<ShownLine> shown;
  add_shown_lines(fs::path(DDP_SOURCE) / "README.md", shown);
  for (auto const& entry : fs::directory_iterator(fs::path(DDP_SOURCE) / "docs")) {
    bool const runs_itself = entry.path().filename() == "tutorial.md";  // in package.tutorial
    if (entry.path().extension() == ".md" && !runs_itself) add_shown_lines(entry.path(), shown);
  }
  ASSERT_GT(shown.size(), 20U) << "is the pattern still right?";
  auto const printed = printed_lines();
  bool const kernel_counts = launcher::read_oom_kills().has_value();
  for (ShownLine const& line : shown) {
    if (!kernel_counts && line.words.find("oom_kill of") != std::string::npos) continue;
    std::regex const pattern = pattern_of(line.words);
    bool const found = std::ranges::any_of(
        printed, [&](std::string const& each) { return std::regex_match(each, pattern); });
    EXPECT_TRUE(found) << line.where << " shows what no run printed: " << line.words;
  }
  if (HasFailure()) {
    for (std::string const& each : printed) std::fprintf(stderr, "%s\n", each.c_str());
  }
}

TEST(ShownOutput, IsComparedWordForWord) {
  std::regex const pattern =
      pattern_of("[ddp-launch] rank 1 (pid 4711, cpu:0) on node7 was killed; 1.5 s, see a/b/rank1.out: …");
  auto const fits = [&](char const* words) { return std::regex_match(words, pattern); };
  EXPECT_TRUE(fits("[ddp-launch] rank 2 (pid 1, cuda:3) on vm was killed; 2 s, see logs/rank2.out anything"));
  EXPECT_FALSE(fits("[ddp-launch] rank 2 (pid 1, cuda:3) on vm is killed; 2 s, see logs/rank2.out anything"));
  EXPECT_FALSE(fits("[ddp-launch] rank 2 (pid 1, cuda:3) on vm was killed; 2 s see logs/rank2.out anything"));
}

}  // namespace
}  // namespace ddp::testing

// Plans of jobs on a machine that a test makes up.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/options/options.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/process/exit_code.hpp"

/// A namespace of its own: other tests of the launcher have functions of these names.
namespace ddp::launcher::local_plans {

using Words = std::vector<std::string>;

inline std::string const kUuidA = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
inline std::string const kUuidB = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

inline Machine machine_with(int cores, std::vector<PhysicalGpu> gpus = {}) {
  Machine machine;
  machine.host = "host";
  machine.allowed_cores = cores;
  machine.physical_cores = cores;
  machine.gpus = std::move(gpus);
  return machine;
}

inline PhysicalGpu const kGpuA{.uuid = {kUuidA}, .name = "NVIDIA H200", .index = PhysicalIndex{0}};
inline PhysicalGpu const kGpuB{.uuid = {kUuidB}, .name = "NVIDIA H200", .index = PhysicalIndex{1}};

inline Plan plan_of(Words words, Machine const& machine, std::set<std::string> const& set = {}) {
  words.insert(words.end(), {"./train", "--epochs", "3"});
  Options const options = parse_options(words);
  return make_plan(options, machine, choose_gpus(options, machine), "train-1", [&](std::string const& name) {
    return set.contains(name) ? std::optional<std::string>("") : std::nullopt;
  });
}

inline std::map<std::string, std::string> environment(Plan const& plan, std::size_t rank) {
  std::map<std::string, std::string> result;
  for (auto const& [name, value] : rank_environment(plan, plan.ranks[rank], {"/c/control", "/c", "4711"})) {
    EXPECT_TRUE(result.emplace(name, value).second) << name << " twice";
  }
  return result;
}

struct Refusal {
  int exit_code = 0;
  std::string words;
};

inline Refusal refusal_of(Words const& words, Machine const& machine) {
  try {
    static_cast<void>(plan_of(words, machine));
  } catch (ExitError const& error) {
    return {error.exit_code(), error.what()};
  }
  return {};
}

inline int exit_code_of(Words const& words, Machine const& machine) {
  return refusal_of(words, machine).exit_code;
}

inline Words warnings_of(Words const& words, Machine const& machine) {
  return plan_of(words, machine).warnings;
}

}  // namespace ddp::launcher::local_plans

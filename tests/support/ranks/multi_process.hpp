// Tests whose ranks are processes: every rank runs the same tests in the same order.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/parallel/world.hpp"

namespace ddp::testing {

/// This process's World, made by the main function before the first test.
[[nodiscard]] World& world();

/// What each rank says, on every rank.
[[nodiscard]] inline std::vector<std::string> gathered(std::string const& mine) {
  return world().control().all_gather(world().next_name("gathered"), mine, world().members(),
                                      Deadline::after(std::chrono::seconds(60)));
}

/// Whether this job's steps can be recorded.
[[nodiscard]] inline bool records_steps() {
  std::string_view const backend = world().communicator().backend();
  return world().device().kind == DeviceKind::cuda && (backend == "nccl" || backend == "solo");
}

/// GPUs, by CUDA's number, on which this process has a context though its rank does not use them. The main
/// function expects none at the end.
[[nodiscard]] std::vector<int> contexts_elsewhere();

/// Called by a test that itself makes contexts on other GPUs: the main function then expects nothing of them.
void uses_other_gpus();

}  // namespace ddp::testing

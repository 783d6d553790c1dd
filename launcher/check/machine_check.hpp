// ddp-launch --check: is this machine fit for the job? Pure functions of what was found; each check is one
// line.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launcher/check/machine_facts.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/machine.hpp"

namespace ddp::launcher {

enum class Verdict {
  ok,
  warning,  ///< a job starts, but may be slower, or fail later
  failed,   ///< a job would not start, or not as the options say
};

struct Check {
  std::string name;  ///< "/dev/shm"
  Verdict verdict = Verdict::ok;
  std::string found = {};
  std::string expected = {};              ///< empty where the verdict is ok, as is what follows
  std::string advice = {};                ///< what to do
  bool worth_retry = false;               ///< a failure that may pass by itself, such as a full GPU
  std::vector<std::string> details = {};  ///< lines below: the matrix of peers

  /// Sets a verdict other than ok.
  Check& judge(Verdict what, std::string what_was_expected, std::string what_to_do) {
    verdict = what;
    expected = std::move(what_was_expected);
    advice = std::move(what_to_do);
    return *this;
  }
};

/// The job that the options describe, as far as checks depend on it.
struct CheckedJob {
  std::vector<GpuId> gpus;  ///< one rank each, or several with --virtual; empty: CPU ranks
  int ranks = 1;
  /// Several ranks, each on a card of its own. Otherwise bytes go through the host's memory.
  bool uses_nccl = false;
};

/// All checks, in the order in which they are printed. Throws ExitError(64) for a --gpus that is no list.
[[nodiscard]] std::vector<Check> check_machine(Options const& options, Machine const& machine,
                                               MachineFacts const& facts);

/// 0 if none failed, warnings or not; 75 if all that failed may pass by itself; otherwise 69.
[[nodiscard]] int exit_code_of(std::span<Check const> checks);

// The parts, for check_machine() and tests.
/// The cards of the job, each once, in the order of the ranks.
[[nodiscard]] std::vector<PhysicalIndex> cards_of(CheckedJob const& job, Machine const& machine);
[[nodiscard]] Check check_gpu(FoundGpu const& found);
[[nodiscard]] Check check_cuda(Machine const& machine, BuiltWith const& built_with);
[[nodiscard]] Check check_peers(CheckedJob const& job, Machine const& machine);
[[nodiscard]] Check check_linux(MachineFacts const& facts);
[[nodiscard]] Check check_cores(CheckedJob const& job, Machine const& machine);
[[nodiscard]] Check check_shared_memory(CheckedJob const& job, MachineFacts const& facts);
[[nodiscard]] Check check_locked_memory(MachineFacts const& facts);
[[nodiscard]] Check check_open_files(CheckedJob const& job, MachineFacts const& facts);
[[nodiscard]] Check check_nccl(CheckedJob const& job, MachineFacts const& facts);
[[nodiscard]] Check check_mpi(MachineFacts const& facts);

}  // namespace ddp::launcher

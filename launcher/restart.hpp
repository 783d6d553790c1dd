// Whether a group that failed is started again, and when (L10).
#pragma once

#include <chrono>
#include <string>

#include "launcher/options/options.hpp"
#include "launcher/output/console.hpp"
#include "launcher/plan/plan.hpp"
#include "launcher/report/report.hpp"
#include "launcher/supervise/supervisor.hpp"

namespace ddp::launcher {

/// How one generation of a job's ranks ended.
struct GenerationEnd {
  bool failed = false;     ///< on its own: no signal was passed on, and the program could be started
  bool all_gone = true;    ///< no process of it is left
  bool made_step = false;  ///< some rank reported progress
  bool joined = false;     ///< some rank joined the control plane: otherwise nothing is known of its steps
  std::chrono::milliseconds lived{};
};

[[nodiscard]] GenerationEnd summarize(JobOutcome const& job, std::chrono::milliseconds lived);

/// Pure, except that it remembers earlier generations.
class RestartPolicy {
 public:
  /// A generation that lives longer without joining the control plane counts as having made a step.
  static constexpr std::chrono::seconds kLongWithoutJoining{60};
  /// Failures that are further apart do not delay each other's restart.
  static constexpr std::chrono::seconds kUndisturbed{60};
  static constexpr int kMostWithoutStep = 2;  ///< restarts in a row

  explicit RestartPolicy(int max_restarts) : left_(max_restarts) {}

  struct Decision {
    bool restart = false;
    std::chrono::milliseconds delay{};  ///< before the restart
    std::string why_not{};              ///< for people; empty if there is nothing to explain
  };
  [[nodiscard]] Decision after(GenerationEnd const& end);

 private:
  int left_;
  int restarts_ = 0;
  int without_step_ = 0;  ///< restarts in a row
  int quick_ = 0;         ///< failures in a row
};

/// Runs generation after generation until one ends well or the policy gives up. Returns ddp-launch's exit
/// code. Before a restart all old processes are gone and the plan's GPUs have room. `open_files`: the ranks'
/// limit.
int run_job(Plan plan, Options const& options, rlimit const& open_files, Console& console, JobFiles& files);

}  // namespace ddp::launcher

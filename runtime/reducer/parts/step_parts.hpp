// Which parts a step has, by what the program asks for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddp/reducer/options.hpp"
#include "reducer/checks/gradient_checks.hpp"
#include "reducer/checks/replica_check.hpp"
#include "reducer/parts/rank_weights.hpp"
#include "reducer/parts/step_commit.hpp"
#include "reducer/parts/uneven.hpp"
#include "reducer/parts/used_parameters.hpp"
#include "reducer/statistics/statistics.hpp"

namespace ddp {

/// The parts of one Reducer's steps. Each option is read here or in ReducerState, and nowhere else. A part
/// that the program does not ask for is null.
struct StepParts {
  /// Throws Error(invalid_argument) and Error(unsupported) for options that cannot be.
  StepParts(DistributedDataParallelOptions const& options, ReducerState const& of);

  /// What ranks must have alike.
  [[nodiscard]] std::string describe() const;
  /// Why steps cannot be recorded into a graph; empty if they can.
  [[nodiscard]] std::string why_not_recorded() const;
  /// Whether a step may be refused at its end.
  [[nodiscard]] bool may_refuse() const;
  /// Calls one function of each part.
  template <class... Parameters, class... Arguments>
  void each(void (StepPart::*verb)(Parameters...), Arguments const&... arguments) {
    for (StepPart* const part : all_) (part->*verb)(arguments...);
  }
  RankWeights weights;
  UsedParameters used;
  std::unique_ptr<Uneven> uneven;
  std::unique_ptr<GradientChecks> checks;
  std::unique_ptr<ReplicaCheck> replica_check;
  std::unique_ptr<Statistics> statistics;
  std::unique_ptr<StepCommit> commit;

 private:
  // In the order of the calls, which is that of messages and the same on every rank. UsedParameters, whose
  // head() waits on the host, come before RankWeights; GradientChecks look at a bucket before its last event.
  // StepCommit comes behind what it commits.
  std::vector<StepPart*> all_;
};

}  // namespace ddp

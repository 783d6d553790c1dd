#include "reducer/parts/step_parts.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

using Options = DistributedDataParallelOptions;

// How ranks count in a step without weights.
RankWeights::Without without_weights(Options const& options) {
  if (options.reduction == Options::Reduction::sum) return RankWeights::Without::sum;
  return options.uneven == Options::Uneven::divide_by_live ? RankWeights::Without::live_average
                                                           : RankWeights::Without::average;
}

std::unique_ptr<Uneven> make_uneven(Options const& options, ReducerState const& of) {
  constexpr std::array kNames{"refuse", "divide_by_live", "divide_by_all", "error"};
  if (options.uneven == Options::Uneven::refuse) return nullptr;
  char const* const name = kNames[static_cast<std::size_t>(options.uneven)];
  return std::make_unique<Uneven>(of, name, options.uneven == Options::Uneven::error);
}

std::unique_ptr<GradientChecks> make_checks(Options const& options, ReducerState const& of,
                                            RankWeights const& weights) {
  require(std::isfinite(options.clip_norm) && options.clip_norm >= 0, [&] {
    return text("Options::clip_norm: expected a finite number above 0, or 0 for none, found ",
                options.clip_norm);
  });
  if (options.nonfinite == Options::Nonfinite::ignore && options.clip_norm == 0) return nullptr;
  if (of.lanes.size() != 1) {
    throw Error(ErrorCode::unsupported,
                text("Options::clip_norm and nonfinite work for parameters on one device, these lie on ",
                     of.lanes.size(), ": leave both out, or move the parameters to one"));
  }
  if (options.deterministic && options.clip_norm > 0 && options.sharding != Sharding::none) {
    throw Error(ErrorCode::unsupported,
                "Options::deterministic: with sharding each rank adds up the squares of its own parts, which "
                "depend on the buckets: leave out clip_norm, sharding, or deterministic");
  }
  return std::make_unique<GradientChecks>(of, weights, options);
}

// Parameters on several devices keep a World from being rebuilt.
std::unique_ptr<StepCommit> make_commit(Options const& options, ReducerState const& of) {
  if (of.lanes.size() != 1 || of.lanes[0].commits == nullptr) return nullptr;
  return std::make_unique<StepCommit>(of, options.nonfinite == Options::Nonfinite::flag,
                                      options.await_commit);
}

}  // namespace

StepParts::StepParts(Options const& options, ReducerState const& of)
    : weights(of, without_weights(options), options.uneven != Options::Uneven::divide_by_all),
      used(of, weights, options.unused == Options::Unused::error),
      uneven(make_uneven(options, of)),
      checks(make_checks(options, of, weights)),
      replica_check(options.verify_every == 0 ? nullptr
                                              : std::make_unique<ReplicaCheck>(of, options.verify_every)),
      statistics(options.statistics ? std::make_unique<Statistics>(of) : nullptr),
      commit(make_commit(options, of)),
      all_{&used, &weights, uneven.get(), checks.get(), replica_check.get(), statistics.get(), commit.get()} {
  std::erase(all_, nullptr);
}

std::string StepParts::describe() const {
  std::string all;
  for (StepPart const* const part : all_) all += text(all.empty() ? "" : ", ", part->describe());
  return all;
}

std::string StepParts::why_not_recorded() const {
  for (StepPart const* const part : all_) {
    if (std::string why = part->why_not_recorded(); !why.empty()) return why;
  }
  return {};
}

bool StepParts::may_refuse() const { return std::ranges::any_of(all_, &StepPart::may_refuse); }

}  // namespace ddp

// Norms and numbers that are not finite: what options ask for, and what is said of it.
#include <cmath>
#include <cstddef>
#include <string>

#include "ddp/core/text.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::make_checks() {
  require(std::isfinite(options_.clip_norm) && options_.clip_norm >= 0, [&] {
    return text("ReducerOptions::clip_norm: expected a finite number above 0, or 0 for none, found ",
                options_.clip_norm);
  });
  if (options_.nonfinite == ReducerOptions::Nonfinite::ignore && !clips()) return;
  if (lanes_.size() != 1) {
    throw Error(
        ErrorCode::unsupported,
        text("ReducerOptions::clip_norm and nonfinite work for parameters on one device, these lie on ",
             lanes_.size(), ": leave both out, or move the parameters to one"));
  }
  checks_ = std::make_unique<GradientChecks>(lanes_[0], parameters_.size(), options_);
}

std::span<GradientRun const> Reducer::Impl::averages(std::size_t bucket) {
  runs_.clear();
  for (BucketSlice const& piece : plan_->buckets()[bucket].slices) {
    runs_.push_back(
        {slice(memory_.gradient(piece.parameter), piece.parameter_offset, piece.count), piece.parameter});
  }
  return runs_;
}

void Reducer::Impl::finish_checks() {
  checks_->finish();
  std::size_t const buckets = plan_->buckets().size();
  for (std::size_t b = 0; clips() && b < buckets; ++b) checks_->clip(averages(b));
  for (std::size_t b = 0; update_ && b < buckets; ++b) update(b);
}

// Every rank has the same flags, so every rank throws the same error.
void Reducer::Impl::throw_nonfinite() {
  std::string complaints;
  for (NonfiniteGradient const& found : checks_->nonfinite_gradients()) {
    complaints += text(complaints.empty() ? "" : ", ", name_of(found.parameter), " on rank ",
                       group_[found.rank.index()]);
  }
  if (complaints.empty()) return;
  let_others_read();
  throw Error(ErrorCode::invalid_state,
              text("gradients with NaN or infinity in synchronised step ", steps_, ": ", complaints,
                   ". No weights have changed. Look at that rank's data and loss, or set "
                   "ReducerOptions::nonfinite to flag, and skip such steps"));
}

// Every rank has the same hashes, so every rank throws the same error.
void Reducer::Impl::verify_weights() {
  std::string complaints;
  std::size_t count = 0;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    weight_checks_[l].exchange(parameters_, *lanes_[l].compute_stream);
    for (auto const& difference : weight_checks_[l].differences()) {
      constexpr std::size_t kMostNamed = 5;
      if (++count > kMostNamed) continue;
      std::vector<Rank> ranks;
      for (std::size_t const r : difference.ranks) ranks.push_back(group_[r]);
      complaints += text(complaints.empty() ? "" : "; ", name_of(difference.parameter), " on rank",
                         ranks.size() == 1 ? " " : "s ", ddp::join(ranks, ", "),
                         difference.is_minority ? "" : text(" is not that of rank ", group_[0]));
    }
  }
  if (count == 0) return;
  let_others_read();
  throw Error(
      ErrorCode::invalid_state,
      text("after synchronised step ", steps_, " ranks do not have the same weights: ", complaints,
           count > 5 ? text("; and ", count - 5, " more") : "",
           ". Something other than averaged gradients changed them, or memory is broken: go back to a "
           "checkpoint, and look at those ranks' hosts if it happens again"));
}

TensorView Reducer::Impl::gradient_norm() const {
  if (clips()) return checks_->norm();
  throw Error(ErrorCode::invalid_state,
              "gradient_norm(): set ReducerOptions::clip_norm, which has it computed");
}

TensorView Reducer::Impl::found_nonfinite() const {
  if (options_.nonfinite == ReducerOptions::Nonfinite::flag) return checks_->found_nonfinite();
  throw Error(ErrorCode::invalid_state,
              "found_nonfinite(): set ReducerOptions::nonfinite to flag, which has gradients looked at");
}

std::vector<NonfiniteGradient> Reducer::Impl::nonfinite_gradients() {
  require_usable();
  static_cast<void>(found_nonfinite());
  if (in_step_) {
    throw Error(ErrorCode::invalid_state,
                "nonfinite_gradients() in the middle of a step: call synchronize() first");
  }
  return checks_->nonfinite_gradients();
}

}  // namespace ddp

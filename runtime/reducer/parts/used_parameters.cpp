#include "reducer/parts/used_parameters.hpp"

#include <string>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "reducer/checks/parameter_check.hpp"

namespace ddp {

UsedParameters::UsedParameters(ReducerState const& of, RankWeights const& weights, bool refuses)
    : StepPart(of), weights_(weights), refuses_(refuses), exempt_(of.parameters.size(), refuses ? 1 : 0) {
  for (ReducerLane const& lane : of.lanes) sent_.emplace_back(lane, of.parameters.size(), refuses);
}

std::vector<std::size_t> UsedParameters::left_out() const {
  std::vector<std::size_t> all;
  if (of_.step.kind == StepKind::joined || weights_.given() == 0.0) return all;
  std::span<std::uint8_t const> const used = of_.marks.used();
  for (std::size_t p = 0; p < used.size(); ++p) {
    if (used[p] == 0) all.push_back(p);
  }
  return all;
}

void UsedParameters::tell_over(ReducerLane const& lane) { told_.emplace(lane, of_.parameters.size(), false); }

bool UsedParameters::by_any(std::size_t parameter) {
  RankFlags& told = cpus_know_ ? *told_ : sent_[answering_lane_];
  told.fetch();
  return told.by_any(parameter);
}

void UsedParameters::carry(std::size_t flags, TellFlags say) {
  for (RankFlags& sent : sent_) sent.carry(flags);
  flags_.assign(flags, 0);
  say_ = std::move(say);
}

// On a CPU the tail of this step is done. On a GPU the host runs ahead: it has the flags of the last step,
// for which head() waited when this step began, with a forward pass enqueued already.
std::span<std::uint8_t const> UsedParameters::flags() {
  if (say_ && of_.lanes[answering_lane_].device.kind == DeviceKind::cpu) fetch_flags();
  return flags_;
}

void UsedParameters::fetch_flags() {
  RankFlags& sent = sent_[answering_lane_];
  sent.fetch();
  for (std::size_t f = 0; f < flags_.size(); ++f) flags_[f] = sent.by_any(of_.parameters.size() + f) ? 1 : 0;
}

std::string UsedParameters::describe() const { return text("unused ", refuses_ ? "error" : "zero"); }

std::string UsedParameters::why_not_recorded() const {
  return refuses_ ? "Options::unused is error, for which the host looks at each step; set it to zero" : "";
}

// Called before this step's head is on the stream; otherwise the host would wait for that too.
void UsedParameters::head() {
  if (say_ && !of_.step.is_recorded() && of_.lanes[answering_lane_].device.kind == DeviceKind::cuda) {
    fetch_flags();
  }
}

// A rank with weight 0, or in join(), may leave parameters out.
void UsedParameters::tail() {
  answering_lane_ = of_.buckets.tail_lane();
  RankFlags& sent = sent_[answering_lane_];
  if (say_) say_(sent.flags());
  bool const is_exempt = of_.step.kind == StepKind::joined || (refuses_ && weights_.given() == 0.0);
  std::span<std::uint8_t const> const used = is_exempt ? exempt_ : of_.marks.used();
  sent.exchange(used);
  cpus_know_ = told_ && !of_.step.is_recorded();
  if (!cpus_know_) return;
  told_->fetch();  // of the last step: its memory is used again
  told_->exchange(used);
}

// Every rank has the same bytes, so every rank throws the same error.
void UsedParameters::verdict() {
  if (!refuses_) return;
  RankFlags& sent = sent_[answering_lane_];
  sent.fetch();
  std::string complaints;
  for (std::size_t p = 0; p < of_.parameters.size(); ++p) {
    std::vector<Rank> without;
    for (std::size_t r = 0; r < of_.ranks.size(); ++r) {
      if (!sent.by(r, p)) without.push_back(of_.ranks[r]);
    }
    if (without.empty()) continue;
    complaints +=
        text(complaints.empty() ? "" : "; ", parameter_name(of_.parameters, p), " on ", name_ranks(without));
  }
  if (complaints.empty()) return;
  of_.ranks.let_others_read();
  throw Error(
      ErrorCode::invalid_state,
      text("gradients that were not marked ready in synchronised step ", of_.step.number, ": ", complaints,
           ". Every parameter must take part in every step, or set Options::unused to zero"));
}

}  // namespace ddp

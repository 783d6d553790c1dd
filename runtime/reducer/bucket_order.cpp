// Which gradients share a bucket, and in which order buckets are sent: at first the reverse of the
// parameters' order, then that in which gradients became complete on rank 0.
#include <algorithm>
#include <charconv>
#include <iomanip>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {
namespace {

char const* name_of(ReducerOptions::Nonfinite nonfinite) noexcept {
  switch (nonfinite) {
    case ReducerOptions::Nonfinite::ignore:
      return "ignore";
    case ReducerOptions::Nonfinite::error:
      return "error";
    case ReducerOptions::Nonfinite::flag:
      return "flag";
  }
  return "unknown";
}

char const* name_of(ReducerOptions::Uneven uneven) noexcept {
  switch (uneven) {
    case ReducerOptions::Uneven::refuse:
      return "refuse";
    case ReducerOptions::Uneven::divide_by_live:
      return "divide_by_live";
    case ReducerOptions::Uneven::divide_by_all:
      return "divide_by_all";
    case ReducerOptions::Uneven::error:
      return "error";
  }
  return "unknown";
}

std::string describe_options(ReducerOptions const& options, BucketPlan const& plan) {
  return text("storage ", to_string(options.storage), ", reduction ",
              options.reduction == ReducerOptions::Reduction::sum ? "sum" : "average", ", unused ",
              options.unused == ReducerOptions::Unused::error ? "error" : "zero", ", sent as ",
              options.reduce_dtype ? to_string(*options.reduce_dtype) : "they are", ", nonfinite ",
              name_of(options.nonfinite), ", clip_norm ", std::setprecision(17), options.clip_norm,
              ", verify_every ", options.verify_every, ", uneven ", name_of(options.uneven), ", buffers ",
              to_string(options.buffers), options.allow_repeated_ready ? ", allow_repeated_ready" : "",
              options.rebuild_buckets ? "" : ", no rebuild", options.statistics ? ", statistics" : "",
              options.allocate ? ", memory of ReducerOptions::allocate" : "", ", ", plan.buckets().size(),
              " buckets (first ", to_string(options.first_bucket_bytes), ", others ",
              to_string(options.bucket_bytes), "), plan ", std::hex, plan.hash());
}

}  // namespace

// R12: ranks that differ are told before they could hang.
void Reducer::Impl::agree_on_plan(BucketPlan const& plan) {
  auto const all = exchange("plan", describe_options(options_, plan));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw CommError(ErrorCode::mismatch,
                    text("rank ", group_[r], " would reduce gradients with ", all[r], "; rank ", group_[0],
                         " with ", all[0], "; give every rank the same options"));
  }
}

// Neighbouring gradients may be sent as one message only if they are neighbours on every rank.
bool Reducer::Impl::agree_on_merging(BucketPlan const& plan) {
  if (options_.storage != GradientStorage::in_place) return false;
  auto const all = exchange("messages", message_layout(plan, parameters_));
  bool const same = std::all_of(all.begin(), all.end(), [&](auto const& layout) { return layout == all[0]; });
  if (!same) {
    log(LogLevel::info, "in_place gradients lie in another order on some ranks: each is sent by itself");
  }
  return same;
}

void Reducer::Impl::build(std::span<std::size_t const> order) {
  auto plan = std::make_unique<BucketPlan const>(
      specs_, order, BucketLimits{options_.first_bucket_bytes, options_.bucket_bytes});
  bool const first = plan_ == nullptr;
  if (!first && *plan == *plan_) return;
  agree_on_plan(*plan);
  GradientMemory memory(*plan, parameters_, options_, lanes_, agree_on_merging(*plan),
                        first ? nullptr : &memory_);
  if (!first && options_.storage == GradientStorage::arena) memory.take_gradients(memory_, lanes_);
  memory_ = std::move(memory);
  plan_ = std::move(plan);
  tracker_ = ReadyTracker(*plan_, expected_marks_);
  bucket_lanes_.clear();
  std::size_t most_slices = 0;
  for (Bucket const& bucket : plan_->buckets()) {
    most_slices = std::max(most_slices, bucket.slices.size());
    ReducerLane const& lane = lane_of(lanes_, bucket.device);
    bucket_lanes_.push_back(static_cast<std::size_t>(&lane - lanes_.data()));
  }
  has_empty_parameters_ =
      std::ranges::any_of(specs_, [](GradientSpec const& spec) { return spec.count == 0; });
  tail_lane_ = bucket_lanes_.empty() ? 0 : bucket_lanes_.back();
  copies_.reserve(most_slices);
  copied_.reserve(most_slices);
  runs_.reserve(most_slices);
  if (checks_) checks_->make_room(*plan_);
  if (statistics_) statistics_->make_room(bucket_lanes_);
  if (first) claim_.emplace(name_, parameters_, options_.storage == GradientStorage::arena);
  if (options_.storage == GradientStorage::arena) {
    sources_ = GradientSources(*plan_, parameters_.size());
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      auto const arena = std::make_shared<Tensor>(memory_.arenas()[plan_->arena_of(p)]);
      parameters_[p].bind_gradient({memory_.gradient(p), arena});
    }
  }
  if (!first) ++rebuilds_;
}

// R2: the order in which gradients became complete on rank 0, followed by those that never did, in the order
// of before.
std::vector<std::size_t> Reducer::Impl::arrival_order_of_rank_0() {
  auto const arrival = tracker_.arrival_order();
  auto const all =
      exchange("arrival", group_[0] == control_->rank() ? ddp::join(arrival, " ") : std::string());
  std::vector<std::size_t> order;
  std::vector<bool> seen(parameters_.size());
  char const* at = all[0].data();
  char const* const end = at + all[0].size();
  while (at != end) {
    std::size_t parameter = 0;
    auto const [next, error] = std::from_chars(at, end, parameter);
    if (error != std::errc{} || parameter >= seen.size() || seen[parameter]) {
      throw CommError(ErrorCode::protocol, text("rank ", group_[0], " sent no order of arrival: ", all[0]));
    }
    seen[parameter] = true;
    order.push_back(parameter);
    at = next == end ? end : next + 1;
  }
  for (std::size_t const p : reverse_order(seen.size())) {
    if (!seen[p]) order.push_back(p);
  }
  return order;
}

// R8: a parameter is complete when it was marked as often as in the first step that marked it at all. Returns
// whether it learnt anything.
bool Reducer::Impl::learn_marks() {
  bool learnt = false;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (expected_marks_[p] != 0 || tracker_.marks(p) == 0) continue;
    expected_marks_[p] = tracker_.marks(p);
    learnt = true;
  }
  return learnt;
}

}  // namespace ddp

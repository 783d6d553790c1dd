#include "reducer/buckets/buckets.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

Buckets::Buckets(std::span<Parameter const> parameters, std::span<ReducerLane const> lanes,
                 BucketLimits limits, bool rebuild)
    : lanes_(lanes), limits_(limits), may_rebuild_(rebuild) {
  for (Parameter const& parameter : parameters) {
    specs_.push_back({parameter.value.count(), parameter.value.dtype, parameter.value.device});
  }
  has_empty_parameters_ = std::ranges::count(specs_, 0U, &GradientSpec::count) > 0;
}

std::size_t Buckets::most_slices() const noexcept {
  std::size_t most = 0;
  for (Bucket const& bucket : plan_->buckets()) most = std::max(most, bucket.slices.size());
  return most;
}

std::unique_ptr<BucketPlan const> Buckets::plan_for(std::span<std::size_t const> order) const {
  return std::make_unique<BucketPlan const>(specs_, order, limits_);
}

std::string Buckets::describe(BucketPlan const& plan) const {
  return text(may_rebuild_ ? "" : "no rebuild, ", plan.buckets().size(), " buckets (first ",
              to_string(limits_.first), ", others ", to_string(limits_.other), "), plan ", std::hex,
              plan.hash());
}

void Buckets::use(std::unique_ptr<BucketPlan const> plan) {
  if (plan_ != nullptr) ++rebuilds_;
  plan_ = std::move(plan);
  lanes_of_buckets_.clear();
  for (Bucket const& bucket : plan_->buckets()) {
    lanes_of_buckets_.push_back(static_cast<std::size_t>(&lane_of(lanes_, bucket.device) - lanes_.data()));
  }
}

std::vector<std::size_t> Buckets::order_of_first_rank(std::span<std::size_t const> arrival,
                                                      ReducerRanks const& ranks) const {
  bool const is_first = ranks[0] == ranks.self();
  std::string const said = ranks.exchange("arrival", is_first ? join(arrival, " ") : std::string()).front();
  std::vector<std::size_t> order;
  std::vector<bool> seen(specs_.size());
  char const* at = said.data();
  char const* const end = at + said.size();
  while (at != end) {
    std::size_t parameter = 0;
    auto const [next, error] = std::from_chars(at, end, parameter);
    if (error != std::errc{} || parameter >= seen.size() || seen[parameter]) {
      throw CommError(ErrorCode::protocol, text("rank ", ranks[0], " sent no order of arrival: ", said));
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

}  // namespace ddp

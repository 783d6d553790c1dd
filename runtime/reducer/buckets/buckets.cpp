#include "reducer/buckets/buckets.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

Buckets::Buckets(std::span<Parameter const> parameters, std::span<ReducerLane const> lanes,
                 BucketLimits limits, bool rebuild, Sharding sharding)
    : lanes_(lanes),
      limits_(limits),
      may_rebuild_(rebuild && sharding == Sharding::none),  // what a rank owns, it owns for good
      sharding_(sharding),
      place_(lanes.empty() ? 0 : lanes[0].communicator->rank().index()) {
  if (is_sharded() && !lanes.empty()) {
    limits_.parts = static_cast<std::size_t>(lanes[0].communicator->size());
  }
  for (Parameter const& parameter : parameters) {
    specs_.push_back({parameter.value.count(), parameter.value.dtype, parameter.value.device});
    if (is_sharded()) groups_.add(parameter.group);
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
  return text(is_sharded()   ? "sharded"
              : may_rebuild_ ? ""
                             : "no rebuild",
              may_rebuild_ ? "" : ", ", plan.buckets().size(), " buckets (first ", to_string(limits_.first),
              ", others ", to_string(limits_.other), "), plan ", std::hex, plan.hash(),
              is_sharded() ? text(", groups ", std::hex, groups_.value()) : "");
}

void Buckets::use(std::unique_ptr<BucketPlan const> plan) {
  if (plan_ != nullptr) ++rebuilds_;
  plan_ = std::move(plan);
  lanes_of_buckets_.clear();
  for (Bucket const& bucket : plan_->buckets()) {
    lanes_of_buckets_.push_back(static_cast<std::size_t>(&lane_of(lanes_, bucket.device) - lanes_.data()));
  }
  own_slices_.clear();
  for (std::size_t b = 0; is_sharded() && b < count(); ++b) own_slices_.push_back(cut_own(b));
}

std::vector<BucketSlice> Buckets::cut_own(std::size_t bucket) const {
  auto const [begin, count] = own_part(bucket);
  std::vector<BucketSlice> own;
  for (BucketSlice const& piece : (*this)[bucket].slices) {
    std::size_t const from = std::max(piece.bucket_offset, begin);
    std::size_t const to = std::min(piece.bucket_offset + piece.count, begin + count);
    if (from >= to) continue;
    own.push_back({piece.parameter, piece.parameter_offset + from - piece.bucket_offset, from, to - from});
  }
  return own;
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

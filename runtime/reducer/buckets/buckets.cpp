#include "reducer/buckets/buckets.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "core/record.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Different numbers below `end`, as join() writes them; none if `words` is something else.
std::optional<std::vector<std::size_t>> numbers_of(std::string_view words, std::size_t end) {
  std::vector<std::size_t> numbers;
  std::vector<bool> seen(end);
  while (!words.empty()) {
    std::size_t number = 0;
    auto const [next, error] = std::from_chars(words.data(), words.data() + words.size(), number);
    if (error != std::errc{} || number >= end || seen[number]) return std::nullopt;
    seen[number] = true;
    numbers.push_back(number);
    words.remove_prefix(std::min(words.size(), static_cast<std::size_t>(next - words.data()) + 1));
  }
  return numbers;
}

}  // namespace

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

std::vector<std::size_t> Buckets::agreed_order(std::span<std::size_t const> arrival,
                                               std::span<std::size_t const> left_out,
                                               ReducerRanks const& ranks) const {
  bool const is_first = ranks[0] == ranks.self();
  auto const said =
      ranks.exchange("arrival", record(is_first ? join(arrival, " ") : std::string(), join(left_out, " ")));
  std::vector<std::size_t> first;
  std::vector<bool> is_left_out(specs_.size());
  for (std::size_t r = 0; r < said.size(); ++r) {
    std::string arrived;
    std::string without;
    bool const is_read = bool(RecordReader(said[r]) >> arrived >> without);
    auto const parameters = is_read ? numbers_of(arrived, specs_.size()) : std::nullopt;
    auto const others = is_read ? numbers_of(without, specs_.size()) : std::nullopt;
    if (!parameters || !others) {
      throw CommError(ErrorCode::protocol, text("rank ", ranks[r], " sent no order of arrival: ", said[r]));
    }
    if (r == 0) first = *parameters;
    for (std::size_t const p : *others) is_left_out[p] = true;
  }
  std::vector<bool> has_arrived(specs_.size());
  for (std::size_t const p : first) has_arrived[p] = true;
  for (std::size_t const p : reverse_order(specs_.size())) {
    if (!has_arrived[p]) first.push_back(p);
  }
  std::vector<std::size_t> order;
  for (bool const wanted : {false, true}) {
    std::ranges::copy_if(first, std::back_inserter(order),
                         [&](std::size_t p) { return is_left_out[p] == wanted; });
  }
  return order;
}

}  // namespace ddp

#include "ddp/reducer/bucket_plan.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/hash.hpp"
#include "core/round_up.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Fills the buckets of one arena.
class ArenaFiller {
 public:
  ArenaFiller(std::size_t arena, DType dtype, Device device, BucketLimits limits)
      : arena_(arena),
        dtype_(dtype),
        device_(device),
        alignment_(BucketPlan::kAlignment / size_of(dtype)),
        unit_(limits.parts > 1 ? limits.parts * BucketPlan::kAlignment : alignment_),
        is_padded_(limits.parts > 1) {
    first_limit_ = elements(limits.first);
    other_limit_ = elements(limits.other);
  }

  // Places `count` elements of `parameter`; full buckets go to `closed`. Returns the element where they
  // start.
  std::size_t place(std::size_t parameter, std::size_t count, std::vector<Bucket>& closed) {
    std::size_t const start = round_up(end_, alignment_);
    bool const split = count > limit();
    std::size_t done = 0;
    while (done < count) {
      if (!open_) open();
      std::size_t const position = round_up(open_->count, alignment_);
      if (split && position >= limit()) {
        close(closed);
        continue;
      }
      std::size_t const piece = split ? std::min(count - done, limit() - position) : count;
      open_->slices.push_back({parameter, done, position, piece});
      open_->count = position + piece;
      end_ = open_->arena_offset + open_->count;
      done += piece;
      if (open_->count >= limit()) close(closed);
    }
    return start;
  }

  void close(std::vector<Bucket>& closed) {
    if (!open_) return;
    if (is_padded_) {
      open_->count = round_up(open_->count, unit_);
      end_ = open_->arena_offset + open_->count;
    }
    closed.push_back(std::move(*open_));
    open_.reset();
    first_ = false;
  }

  // The gap after the last gradient counts too, so that the size does not depend on the order.
  [[nodiscard]] Arena arena() const { return {dtype_, device_, round_up(end_, alignment_)}; }

 private:
  // A whole number of units, so that a split parameter continues without a gap.
  [[nodiscard]] std::size_t elements(Bytes limit) const {
    return std::max(limit.value / size_of(dtype_) / unit_, std::size_t{1}) * unit_;
  }
  [[nodiscard]] std::size_t limit() const { return first_ ? first_limit_ : other_limit_; }
  void open() {
    open_.emplace();
    open_->dtype = dtype_;
    open_->device = device_;
    open_->arena = arena_;
    open_->arena_offset = round_up(end_, alignment_);
  }

  std::size_t arena_;
  DType dtype_;
  Device device_;
  std::size_t alignment_;
  std::size_t unit_;  // what a bucket has a whole number of, if it is padded
  bool is_padded_;
  std::size_t first_limit_;
  std::size_t other_limit_;
  std::size_t end_ = 0;
  bool first_ = true;
  std::optional<Bucket> open_;
};

void check_permutation(std::span<std::size_t const> order, std::size_t parameters) {
  std::vector<bool> seen(parameters);
  bool fits = order.size() == parameters;
  for (std::size_t const p : order) {
    if (p >= parameters || seen[p]) fits = false;
    if (p < parameters) seen[p] = true;
  }
  require(fits, text("a bucket plan of ", parameters, " parameters needs each of them once in its order"));
}

}  // namespace

BucketPlan::BucketPlan(std::span<GradientSpec const> parameters, std::span<std::size_t const> order,
                       BucketLimits limits) {
  require(limits.first.value > 0 && limits.other.value > 0,
          "a bucket's size limit must be more than 0 bytes");
  check_permutation(order, parameters.size());
  placements_.resize(parameters.size());
  std::vector<ArenaFiller> fillers;
  for (std::size_t const p : order) {
    GradientSpec const& spec = parameters[p];
    auto const fits = [&](Arena const& arena) {
      return arena.dtype == spec.dtype && arena.device == spec.device;
    };
    auto const found = std::find_if(arenas_.begin(), arenas_.end(), fits);
    auto const arena = static_cast<std::size_t>(found - arenas_.begin());
    if (found == arenas_.end()) {
      arenas_.push_back({spec.dtype, spec.device, 0});
      fillers.emplace_back(arena, spec.dtype, spec.device, limits);
    }
    placements_[p].arena = arena;
    placements_[p].offset = fillers[arena].place(p, spec.count, buckets_);
  }
  for (std::size_t a = 0; a < fillers.size(); ++a) {
    fillers[a].close(buckets_);
    arenas_[a] = fillers[a].arena();
  }

  std::vector<std::vector<std::size_t>> holders(parameters.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (BucketSlice const& slice : buckets_[b].slices) holders[slice.parameter].push_back(b);
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    placements_[p].first_bucket = bucket_indices_.size();
    placements_[p].bucket_count = holders[p].size();
    bucket_indices_.insert(bucket_indices_.end(), holders[p].begin(), holders[p].end());
  }
}

std::span<std::size_t const> BucketPlan::buckets_of(std::size_t parameter) const noexcept {
  Placement const& placement = placements_[parameter];
  return std::span(bucket_indices_).subspan(placement.first_bucket, placement.bucket_count);
}

std::size_t BucketPlan::arena_offset(std::size_t parameter) const noexcept {
  return placements_[parameter].offset;
}

std::size_t BucketPlan::arena_of(std::size_t parameter) const noexcept {
  return placements_[parameter].arena;
}

std::uint64_t BucketPlan::hash() const noexcept {
  StableHash hash;
  for (Bucket const& bucket : buckets_) {
    hash.add(static_cast<std::uint64_t>(bucket.dtype)).add(static_cast<std::uint64_t>(bucket.device.kind));
    hash.add(bucket.arena).add(bucket.arena_offset).add(bucket.count).add(bucket.slices.size());
    for (BucketSlice const& slice : bucket.slices) {
      hash.add(slice.parameter).add(slice.parameter_offset).add(slice.bucket_offset).add(slice.count);
    }
  }
  return hash.value();
}

std::vector<std::size_t> reverse_order(std::size_t parameters) {
  std::vector<std::size_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

}  // namespace ddp

// Which gradients travel together: a pure function from parameters to buckets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/tensor.hpp"

namespace DDP_EXPORT ddp {

/// What the plan needs to know of a parameter.
struct GradientSpec {
  std::size_t count = 0;     ///< elements
  DType dtype = DType::f32;  ///< of its elements
  Device device;             ///< where it lies
};

/// A run of elements of one parameter inside a bucket.
struct BucketSlice {
  std::size_t parameter = 0;         ///< index as in the constructor's list
  std::size_t parameter_offset = 0;  ///< element of the parameter where it starts
  std::size_t bucket_offset = 0;     ///< element of the bucket where it starts
  std::size_t count = 0;             ///< elements
  friend bool operator==(BucketSlice const&, BucketSlice const&) = default;  ///< Member by member.
};

/// Gradients of one dtype on one device that are reduced as one message.
struct Bucket {
  DType dtype = DType::f32;         ///< of its elements
  Device device;                    ///< where it lies
  std::size_t arena = 0;            ///< which arena it lies in: one per (dtype, device)
  std::size_t arena_offset = 0;     ///< element of the arena where it starts
  std::size_t count = 0;            ///< elements, with the gaps that alignment leaves
  std::vector<BucketSlice> slices;  ///< by ascending bucket_offset
  friend bool operator==(Bucket const&, Bucket const&) = default;  ///< Member by member.
};

/// The buckets of one (dtype, device) lie one after another in an arena, so that a parameter that is split
/// over buckets is still contiguous in memory.
struct Arena {
  DType dtype = DType::f32;                                      ///< of its elements
  Device device;                                                 ///< where it lies
  std::size_t count = 0;                                         ///< elements
  friend bool operator==(Arena const&, Arena const&) = default;  ///< Member by member.
};

/// How large buckets may become.
struct BucketLimits {
  Bytes first = 1_MiB;   ///< of the first bucket of each arena: it should start early
  Bytes other = 25_MiB;  ///< of all others
  /// If above 1: every bucket is padded so that it can be cut into so many equal parts, of which each begins
  /// aligned in any type.
  std::size_t parts = 1;
};

/// Where each gradient lies, and in which order buckets are launched. Equal inputs give equal plans on all
/// ranks.
class BucketPlan {
 public:
  /// Every gradient starts at a multiple of this many bytes, as vector loads and NCCL's fast path need.
  static constexpr std::size_t kAlignment = 16;

  /// `order`: parameter indices, each once, in the expected order of readiness. A parameter larger than the
  /// limit is split over buckets; otherwise a bucket closes when its limit is reached. Throws
  /// Error(invalid_argument) if `order` is no permutation or a limit is 0.
  BucketPlan(std::span<GradientSpec const> parameters, std::span<std::size_t const> order,
             BucketLimits limits = {});

  /// In launch order.
  [[nodiscard]] std::span<Bucket const> buckets() const noexcept { return buckets_; }
  /// One for each dtype on each device.
  [[nodiscard]] std::span<Arena const> arenas() const noexcept { return arenas_; }
  /// The buckets that hold a part of `parameter`, as indices into buckets(), ascending.
  [[nodiscard]] std::span<std::size_t const> buckets_of(std::size_t parameter) const noexcept;
  /// Element of its arena where `parameter` starts.
  [[nodiscard]] std::size_t arena_offset(std::size_t parameter) const noexcept;
  [[nodiscard]] std::size_t arena_of(std::size_t parameter) const noexcept;  ///< Index into arenas().
  /// Equal for equal plans, the same on every machine.
  [[nodiscard]] std::uint64_t hash() const noexcept;
  /// Equal buckets in the same places.
  friend bool operator==(BucketPlan const&, BucketPlan const&) = default;

 private:
  struct Placement {
    std::size_t arena = 0;
    std::size_t offset = 0;
    std::size_t first_bucket = 0;  // into bucket_indices_
    std::size_t bucket_count = 0;
    friend bool operator==(Placement const&, Placement const&) = default;
  };
  std::vector<Bucket> buckets_;
  std::vector<Arena> arenas_;
  std::vector<Placement> placements_;
  std::vector<std::size_t> bucket_indices_;
};

/// n-1 … 0: the order in which a backward pass usually completes gradients.
[[nodiscard]] std::vector<std::size_t> reverse_order(std::size_t parameters);

}  // namespace ddp

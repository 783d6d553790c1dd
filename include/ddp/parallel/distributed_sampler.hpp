// Which samples this rank takes in which step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/parallel/world.hpp"

namespace ddp {
struct WorldPlace;  // of the runtime
}  // namespace ddp

namespace DDP_EXPORT ddp {

/// One rank's share of one step.
struct Batch {
  std::span<std::size_t const>
      indices;           ///< of the data set; valid until set_epoch() or the sampler's destruction
  std::size_t real = 0;  ///< the first `real` of them count; the rest is padding, for weight 0
  std::size_t step = 0;  ///< within the epoch

  /// Runs of at most `most` samples, in order, for micro-steps: one, without samples, of a batch without any.
  /// Throws Error(invalid_argument) for `most` 0.
  [[nodiscard]] std::vector<Batch> parts(std::size_t most) const;
  /// Samples of the batch on this rank.
  [[nodiscard]] std::size_t size() const noexcept { return indices.size(); }
  [[nodiscard]] auto begin() const noexcept { return indices.begin(); }       ///< Of the indices.
  [[nodiscard]] auto end() const noexcept { return indices.end(); }           ///< Of the indices.
  operator std::span<std::size_t const>() const noexcept { return indices; }  ///< The indices.
};

/// What order samples come in.
struct DistributedSamplerOptions {
  /// What happens if the samples cannot be divided evenly among ranks.
  enum class Tail {
    pad,   ///< the last batch is filled up with samples from the epoch's start, for weight 0
    drop,  ///< an incomplete last batch is left out
  };
  bool shuffle = true;     ///< a new order in each epoch
  std::uint64_t seed = 0;  ///< of the order
  Tail tail = Tail::pad;   ///< of batches()
};

/// Distributes a data set over the ranks. Every rank makes it with the same arguments; nothing is sent.
///
/// The order of samples is a permutation that depends on (seed, epoch) only, not on the number of ranks. Step
/// k takes its k-th section (the global batch), and each rank a contiguous part of that section. So it
/// follows World::rebuild(): after resume_at() the rest of the epoch is divided among the ranks that are
/// left.
class DistributedSampler {
 public:
  using Options = DistributedSamplerOptions;  ///< What order samples come in.

  /// Throws Error(invalid_argument) for an empty data set.
  DistributedSampler(std::size_t dataset_size, World const& world, Options options = {});
  /// The same for any rank of any size, without a World.
  DistributedSampler(std::size_t dataset_size, Rank rank, int size, Options options = {});

  /// Starts an epoch: another permutation, at its first sample. Call it on every rank alike.
  void set_epoch(std::uint64_t epoch);
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }  ///< The current one.
  /// Skips the first `samples_seen` samples of this epoch, counted over all ranks, because an earlier run has
  /// used them.
  void resume_at(std::size_t samples_seen);

  /// The steps of this epoch with `batch` samples per rank: every rank's batches have the same size.
  [[nodiscard]] std::vector<Batch> batches(std::size_t batch);
  /// The steps of this epoch with `batch` samples over all ranks together, split so that sizes differ by at
  /// most one (a rank may get none): the union of the shards is the same for any number of ranks. Use each
  /// shard's size as the step's weight. With Tail::pad the last batch just stays smaller: nothing is padded.
  /// Shards grow when ranks are lost: Batch::parts() keeps what is computed at once as it was.
  [[nodiscard]] std::vector<Batch> global_batches(std::size_t batch);

 private:
  DistributedSampler(std::size_t dataset_size, std::shared_ptr<WorldPlace const> place, Options options);
  std::size_t dataset_size_;
  std::shared_ptr<WorldPlace const> place_;
  Options options_;
  std::uint64_t epoch_ = 0;
  std::size_t position_ = 0;
  std::vector<std::size_t> order_;                 // the epoch's permutation
  std::vector<std::vector<std::size_t>> padding_;  // padded last batches of this rank
};

}  // namespace ddp

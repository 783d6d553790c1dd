// Which samples of a torch::data set this rank loads.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/parallel/distributed_sampler.hpp"
#include "ddp/parallel/world.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch {

/// ddp::DistributedSampler for torch::data::make_data_loader(): each rank gets a part of every global batch,
/// in an order that depends on seed and epoch only. Each pass over the loader is an epoch, and the number of
/// the epoch advances by itself. With Tail::pad the last batch is filled up with samples from the epoch's
/// start, so that every rank makes as many steps; they count as all samples do. Copies share their position,
/// so that a program can still call the one that it gave to a loader.
class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  using Options = DistributedSamplerOptions;  ///< What order samples come in.

  /// Throws Error(invalid_argument) for an empty data set.
  DistributedSampler(std::size_t dataset_size, World const& world, Options options = {});

  /// The next pass over the loader is this epoch.
  void set_epoch(std::uint64_t epoch);
  [[nodiscard]] std::uint64_t epoch() const noexcept;  ///< The current one.
  /// The next pass over the loader skips the first `samples_seen` samples of the epoch, counted over all
  /// ranks.
  void resume_at(std::size_t samples_seen);
  /// Samples of this epoch that all ranks together have been given. Loaders ask for batches before they are
  /// used: a program that resumes counts its own steps.
  [[nodiscard]] std::size_t samples_given() const noexcept;

  /// For loaders: a pass begins, over a set of `new_size` samples if it is given.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  /// For loaders: this rank's part of the next batch, with `batch_size` samples per rank.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;  ///< Epoch and position.
  void load(torch::serialize::InputArchive& archive) override;         ///< What save() wrote.

 private:
  class DDP_HIDDEN State;
  std::shared_ptr<State> state_;
};

}  // namespace libtorch
}  // namespace ddp

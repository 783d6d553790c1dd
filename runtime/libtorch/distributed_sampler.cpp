#include "ddp/libtorch/distributed_sampler.hpp"

#include <ATen/Functions.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>

namespace ddp::libtorch {

class DistributedSampler::State {
 public:
  State(std::size_t dataset_size, World const& world, Options options)
      : rank_(world.rank()),
        ranks_(world.size()),
        options_(options),
        size_(dataset_size),
        sampler_(dataset_size, rank_, ranks_, options) {}

  void go_to(std::uint64_t epoch, std::size_t samples) {
    sampler_.set_epoch(epoch);
    sampler_.resume_at(samples);
    first_ = given_ = samples;
    fresh_ = true;
    batch_ = 0;
  }
  void reset(std::optional<std::size_t> new_size) {
    std::uint64_t const epoch = sampler_.epoch() + (fresh_ ? 0 : 1);
    std::size_t const samples = fresh_ ? first_ : 0;
    if (new_size && *new_size != size_) {
      size_ = *new_size;
      sampler_ = ddp::DistributedSampler(size_, rank_, ranks_, options_);
    }
    go_to(epoch, samples);
  }
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) {
    fresh_ = false;
    if (batch_size != batch_) {
      sampler_.resume_at(given_);
      batches_ = sampler_.batches(batch_size);
      batch_ = batch_size;
      next_ = 0;
    }
    if (next_ == batches_.size()) return std::nullopt;
    Batch const& batch = batches_[next_++];
    given_ = std::min(size_, given_ + batch_size * static_cast<std::size_t>(ranks_));
    return std::vector<std::size_t>(batch.begin(), batch.end());
  }
  [[nodiscard]] std::uint64_t epoch() const noexcept { return sampler_.epoch(); }
  [[nodiscard]] std::size_t given() const noexcept { return given_; }

 private:
  Rank rank_;
  int ranks_;
  Options options_;
  std::size_t size_;
  ddp::DistributedSampler sampler_;
  bool fresh_ = true;      // no batch of this epoch was asked for
  std::size_t first_ = 0;  // where the epoch begins
  std::size_t given_ = 0;
  std::size_t batch_ = 0;  // of batches_; 0: there are none
  std::size_t next_ = 0;
  std::vector<Batch> batches_;
};

DistributedSampler::DistributedSampler(std::size_t dataset_size, World const& world, Options options)
    : state_(std::make_shared<State>(dataset_size, world, options)) {}

void DistributedSampler::set_epoch(std::uint64_t epoch) { state_->go_to(epoch, 0); }
std::uint64_t DistributedSampler::epoch() const noexcept { return state_->epoch(); }
void DistributedSampler::resume_at(std::size_t samples_seen) { state_->go_to(state_->epoch(), samples_seen); }
std::size_t DistributedSampler::samples_given() const noexcept { return state_->given(); }
void DistributedSampler::reset(std::optional<std::size_t> new_size) { state_->reset(new_size); }
std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  return state_->next(batch_size);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::scalar_tensor(static_cast<std::int64_t>(state_->epoch()), at::kLong));
  archive.write("samples", at::scalar_tensor(static_cast<std::int64_t>(state_->given()), at::kLong));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch = at::scalar_tensor(0, at::kLong);
  at::Tensor samples = at::scalar_tensor(0, at::kLong);
  archive.read("epoch", epoch);
  archive.read("samples", samples);
  state_->go_to(static_cast<std::uint64_t>(epoch.item<std::int64_t>()),
                static_cast<std::size_t>(samples.item<std::int64_t>()));
}

}  // namespace ddp::libtorch

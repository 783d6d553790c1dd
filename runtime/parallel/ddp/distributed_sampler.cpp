#include "ddp/parallel/distributed_sampler.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ddp/core/text.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {
namespace {

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the same
// numbers with every standard library.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t state) noexcept : state_(state) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound), without bias: numbers from the incomplete last run of `bound` are drawn again.
  std::size_t below(std::size_t bound) noexcept {
    std::uint64_t const skipped = (0 - bound) % bound;  // 2^64 mod bound
    std::uint64_t drawn = next();
    while (drawn < skipped) drawn = next();
    return static_cast<std::size_t>(drawn % bound);
  }

 private:
  std::uint64_t state_;
};

void check_batch(std::size_t batch) {
  if (batch == 0)
    throw Error(ErrorCode::invalid_argument, "DistributedSampler: a batch has at least one sample");
}

}  // namespace

std::vector<Batch> Batch::parts(std::size_t most) const {
  check_batch(most);
  std::vector<Batch> all;
  for (std::size_t at = 0; at < size() || all.empty(); at += most) {
    std::size_t const length = std::min(most, size() - at);
    all.push_back({indices.subspan(at, length), std::min(length, real - std::min(real, at)), step});
  }
  return all;
}

DistributedSampler::DistributedSampler(std::size_t dataset_size, World const& world, Options options)
    : DistributedSampler(dataset_size, WorldAccess::state(world).place, options) {}

DistributedSampler::DistributedSampler(std::size_t dataset_size, Rank rank, int size, Options options)
    : DistributedSampler(dataset_size, std::make_shared<WorldPlace const>(WorldPlace{rank, size}), options) {}

DistributedSampler::DistributedSampler(std::size_t dataset_size, std::shared_ptr<WorldPlace const> place,
                                       Options options)
    : dataset_size_(dataset_size), place_(std::move(place)), options_(options) {
  require(dataset_size > 0, "DistributedSampler: the data set is empty");
  int const rank = place_->rank.value();
  require(rank >= 0 && rank < place_->size,
          text("DistributedSampler: rank ", rank, " of ", place_->size, " ranks"));
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  position_ = 0;
  padding_.clear();
  order_.resize(dataset_size_);
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  if (!options_.shuffle) return;
  SplitMix64 seeds(options_.seed);
  SplitMix64 random(seeds.next() ^ (epoch * 0x9e3779b97f4a7c15ULL));
  for (std::size_t i = dataset_size_; i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
}

void DistributedSampler::resume_at(std::size_t samples_seen) {
  require(samples_seen <= dataset_size_, text("DistributedSampler: cannot resume behind sample ",
                                              samples_seen, " of an epoch of ", dataset_size_));
  position_ = samples_seen;
}

std::vector<Batch> DistributedSampler::batches(std::size_t batch) {
  check_batch(batch);
  auto const ranks = static_cast<std::size_t>(place_->size);
  require(batch <= SIZE_MAX / ranks,
          [&] { return text("DistributedSampler: a batch of ", batch, " samples"); });
  std::size_t const global = batch * ranks;
  std::size_t const first_step = position_ / global;
  std::span<std::size_t const> const order(order_);
  std::vector<Batch> steps;
  std::size_t at = position_;
  for (; global <= dataset_size_ - at; at += global) {
    steps.push_back(
        {order.subspan(at + place_->rank.index() * batch, batch), batch, first_step + steps.size()});
  }
  if (at == dataset_size_ || options_.tail == Options::Tail::drop) return steps;
  // The last run, filled up from the epoch's start. This rank's part of it stands in padding_.
  std::vector<std::size_t>& last = padding_.emplace_back();
  for (std::size_t i = 0; i < batch; ++i) {
    last.push_back(order_[(at + place_->rank.index() * batch + i) % dataset_size_]);
  }
  std::size_t const left = dataset_size_ - at;
  std::size_t const mine = left - std::min(left, place_->rank.index() * batch);
  steps.push_back({last, std::min(mine, batch), first_step + steps.size()});
  return steps;
}

std::vector<Batch> DistributedSampler::global_batches(std::size_t batch) {
  check_batch(batch);
  std::span<std::size_t const> const order(order_);
  auto const ranks = static_cast<std::size_t>(place_->size);
  std::vector<Batch> steps;
  std::size_t const first_step = position_ / batch;
  std::size_t length = 0;
  for (std::size_t at = position_; at < dataset_size_; at += length) {
    length = std::min(batch, dataset_size_ - at);
    if (length < batch && options_.tail == Options::Tail::drop) break;
    std::size_t const begin = length * place_->rank.index() / ranks;
    std::size_t const end = length * (place_->rank.index() + 1) / ranks;
    steps.push_back({order.subspan(at + begin, end - begin), end - begin, first_step + steps.size()});
  }
  return steps;
}

}  // namespace ddp

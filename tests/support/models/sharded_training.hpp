// A training whose optimizer is sharded or plain: the numbers must be the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {

/// Adam with decoupled weight decay on the host, for elements that lie anywhere.
template <class T>
class HostAdam {
 public:
  explicit HostAdam(double rate) : rate_(rate) {}
  /// `values` and `gradient`: f32 or T, on any device. Waits for the stream.
  void update(TensorView const& values, TensorView const& gradient, Stream& stream) {
    std::vector<T> weights(values.count());
    std::vector<T> slopes(values.count());
    copy_elements(view_of(std::span(weights)), values, stream);
    copy_elements(view_of(std::span(slopes)), gradient, stream);
    stream.synchronize();
    if (first_.empty()) {
      first_.resize(weights.size());
      second_.resize(weights.size());
      for (T const weight : weights) masters_.push_back(static_cast<float>(weight));
    }
    ++steps_;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      auto const slope = static_cast<float>(slopes[i]);
      first_[i] = 0.9F * first_[i] + 0.1F * slope;
      second_[i] = 0.99F * second_[i] + 0.01F * slope * slope;
      double const step = first_[i] / (1 - std::pow(0.9, steps_)) /
                          (std::sqrt(second_[i] / (1 - std::pow(0.99, steps_))) + 1e-8);
      masters_[i] = static_cast<float>(masters_[i] * (1 - 0.01 * rate_) - rate_ * step);
      weights[i] = static_cast<T>(masters_[i]);
    }
    copy_elements(values, view_of(std::span(weights)), stream);
    stream.synchronize();
  }
  [[nodiscard]] std::size_t elements() const noexcept { return first_.size(); }

 private:
  double rate_;
  int steps_ = 0;
  std::vector<float> first_, second_, masters_;
};

/// A model that is only parameters, of two groups.
template <class T>
class ShardedModel {
 public:
  explicit ShardedModel(std::vector<std::size_t> counts) : counts_(std::move(counts)) {
    for (std::size_t p = 0; p < counts_.size(); ++p) {
      values_.push_back(zeros(Shape{counts_[p]}, dtype_of<T>, world().device()));
      std::vector<T> initial(counts_[p]);
      for (std::size_t i = 0; i < initial.size(); ++i) {  // rank 0's must win
        initial[i] = static_cast<T>(
            static_cast<float>(std::sin(1.0 + static_cast<double>(p * 100 + i)) + world().rank().value()));
      }
      write(values_.back(), initial);
      gradients_.emplace_back();
    }
  }
  ShardedModel(ShardedModel const&) = delete;
  ShardedModel& operator=(ShardedModel const&) = delete;

  [[nodiscard]] std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    for (std::size_t p = 0; p < counts_.size(); ++p) {
      list.push_back({.name = text("p", p),
                      .value = values_[p],
                      .bind_gradient = [this, p](Tensor const& place) { gradients_[p] = place; },
                      .bind_value = [this, p](Tensor const& place) { values_[p] = place; },
                      .group = p % 2});
    }
    return list;
  }
  [[nodiscard]] std::size_t count() const noexcept { return counts_.size(); }
  [[nodiscard]] Tensor const& value_at(std::size_t p) const noexcept { return values_[p]; }
  [[nodiscard]] Tensor const& gradient_at(std::size_t p) const noexcept { return gradients_[p]; }

  /// Other numbers on each rank, and in each step; one of them is `spoilt`, unless that is 0.
  void fill_gradient(std::size_t p, int step, float spoilt = 0) {
    std::vector<T> elements(counts_[p]);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      auto const place = static_cast<double>(p * 31 + i * 7 + static_cast<std::size_t>(step) * 13);
      elements[i] = static_cast<T>(static_cast<float>(std::sin(place + 1.7 * world().rank().value())));
    }
    if (spoilt != 0) elements[elements.size() * 2 / 3] = static_cast<T>(spoilt);
    write(gradients_[p], elements);
  }
  [[nodiscard]] std::vector<std::vector<T>> values() const {
    std::vector<std::vector<T>> all;
    for (std::size_t p = 0; p < counts_.size(); ++p) {
      all.emplace_back(counts_[p]);
      copy_elements(view_of(std::span(all.back())), values_[p], world().stream());
      world().stream().synchronize();
    }
    return all;
  }

 private:
  void write(Tensor const& to, std::vector<T>& elements) {
    copy_elements(to, view_of(std::span(elements)), world().stream());
    world().stream().synchronize();
  }

  std::vector<std::size_t> counts_;
  std::vector<Tensor> values_;
  std::vector<Tensor> gradients_;
};

inline std::vector<std::size_t> const kShardedCounts{5000, 3, 700, 1, 2048, 0, 64};
inline constexpr int kShardedSteps = 5;

/// How it trains.
struct ShardedWay {
  std::string name;
  DistributedDataParallelOptions options{};
  bool weights = false;     ///< set_weight(), another one on each rank
  int micro_steps = 1;      ///< all but the last under no_sync()
  bool leaves_out = false;  ///< a parameter that no rank marks, and one that only rank 0 marks
  bool spoils = false;      ///< NaN on the last rank in step 1, infinity on one rank in step 3
  int ends_early = -1;      ///< the rank that has data for two steps less, and calls join()
  std::vector<std::size_t> counts = kShardedCounts;
};

/// Where a slice is updated.
enum class Updates { plain, in_backward, behind };

/// Steps of `way`. With Nonfinite::flag no update follows a step that is flagged: in step 1 the program does
/// not call update_slices(), otherwise each slice's update looks at the flag.
template <class T>
class ShardedTraining {
 public:
  ShardedTraining(ShardedWay way, Updates updates)
      : way_(std::move(way)),
        updates_(updates),
        model_(way_.counts),
        ddp_(world(), model_.parameters(), options()) {
    constexpr double kRates[] = {0.01, 0.03};
    if (updates_ == Updates::plain) {
      for (std::size_t p = 0; p < model_.count(); ++p) optimizers_.emplace_back(kRates[p % 2]);
    } else {
      for (Slice const& slice : ddp_.slices()) optimizers_.emplace_back(kRates[slice.group]);
    }
    if (updates_ == Updates::in_backward) ddp_.on_slice_ready(update_of_a_slice());
  }
  ShardedTraining(ShardedTraining const&) = delete;
  ShardedTraining& operator=(ShardedTraining const&) = delete;

  /// All steps for which this rank has data, then join().
  void run() {
    int const fewer = way_.ends_early == world().rank().value() ? 2 : 0;
    while (step_ < kShardedSteps - fewer) {
      ddp_.zero_gradients();
      for (int micro = 1; micro < way_.micro_steps; ++micro) {
        NoSyncGuard const guard = ddp_.no_sync();
        for (std::size_t p = model_.count(); p-- > 0;) mark(p);
        ddp_.synchronize();
      }
      begin();
      for (std::size_t p = model_.count(); p-- > 0;) mark(p);
      end();
    }
    if (way_.ends_early >= 0) ddp_.join([this] { update(); });
  }

  /// One step in parts: begin(), mark() from the last parameter to the first, end().
  void begin() {
    if (way_.micro_steps == 1) ddp_.zero_gradients();
    if (way_.weights) ddp_.set_weight(1.0 + world().rank().value() + step_);
  }
  void mark(std::size_t p) {
    if (way_.leaves_out && (p == 2 || (p == 4 && world().rank() != 0))) return;
    model_.fill_gradient(p, step_, p == 0 ? spoilt() : 0);
    ddp_.gradient_ready(p);
  }
  void end() {
    ddp_.synchronize();
    update();
  }

  [[nodiscard]] std::size_t count() const noexcept { return model_.count(); }
  [[nodiscard]] std::vector<std::vector<T>> values() const { return model_.values(); }
  [[nodiscard]] int steps() const noexcept { return step_; }
  [[nodiscard]] int flagged_steps() const noexcept { return flagged_; }

 private:
  [[nodiscard]] DistributedDataParallelOptions options() const {
    DistributedDataParallelOptions options = way_.options;
    options.bucket_bytes = 4000_B;
    options.first_bucket_bytes = 1000_B;
    options.rebuild_buckets = false;
    options.sharding = updates_ == Updates::plain ? Sharding::none : Sharding::optimizer;
    return options;
  }
  [[nodiscard]] float spoilt() const {
    if (!way_.spoils) return 0;
    int const last = world().size() - 1;
    int const me = world().rank().value();
    if (step_ == 1 && me == last) return std::numeric_limits<float>::quiet_NaN();
    if (step_ == 3 && me == (way_.ends_early == 0 ? last : 0)) return std::numeric_limits<float>::infinity();
    return 0;
  }
  [[nodiscard]] bool is_flagged(Stream& stream) const {
    if (way_.options.nonfinite != DistributedDataParallelOptions::Nonfinite::flag) return false;
    float flag = 0;
    copy_elements(view_of(std::span(&flag, 1)), ddp_.found_nonfinite(), stream);
    stream.synchronize();
    return flag != 0;
  }
  [[nodiscard]] SliceReady update_of_a_slice() {
    return [this](Slice const& slice, Stream& stream) {
      if (!is_flagged(stream)) optimizers_[slice.index].update(slice.values, slice.gradient, stream);
    };
  }
  void update() {
    bool const flagged = is_flagged(world().stream());
    flagged_ += flagged ? 1 : 0;
    if (updates_ == Updates::behind && !(flagged && step_ == 1)) ddp_.update_slices(update_of_a_slice());
    for (std::size_t p = 0; updates_ == Updates::plain && !flagged && p < model_.count(); ++p) {
      optimizers_[p].update(model_.value_at(p), model_.gradient_at(p), world().stream());
    }
    ++step_;
  }

  ShardedWay way_;
  Updates updates_;
  ShardedModel<T> model_;
  std::vector<HostAdam<T>> optimizers_;
  int step_ = 0;
  int flagged_ = 0;
  DistributedDataParallel ddp_;
};

template <class T>
[[nodiscard]] std::vector<std::vector<T>> train_sharded(ShardedWay const& way, Updates updates) {
  ShardedTraining<T> training(way, updates);
  training.run();
  bool const alone = way.ends_early >= 0 && world().size() == 1;
  EXPECT_EQ(training.steps(), kShardedSteps - (alone ? 2 : 0)) << way.name;
  EXPECT_EQ(training.flagged_steps(), !way.spoils ? 0 : alone ? 1 : 2) << way.name;
  return training.values();
}

/// NCCL multiplies by a weight while it sums, in one rounding with either of two products: which of them
/// depends on the algorithm. Of more than two ranks a reduce-scatter and an all-reduce add in different
/// orders. Otherwise the bits are the same.
inline void expect_plain_numbers(ShardedWay const& way, std::vector<std::vector<float>> const& found,
                                 std::vector<std::vector<float>> const& plain, std::string const& what) {
  bool const has_order = world().communicator().backend() != "nccl" || way.options.deterministic;
  bool const to_the_bit = has_order || (!way.weights && world().size() <= 2);
  auto const equal = [&](float one, float other) {
    return to_the_bit ? one == other : std::abs(one - other) < 1e-5F;
  };
  ASSERT_EQ(found.size(), plain.size());
  for (std::size_t p = 0; p < plain.size(); ++p) {
    EXPECT_TRUE(std::ranges::equal(found[p], plain[p], equal))
        << way.name << ", " << what << ": parameter " << p;
  }
}

[[nodiscard]] inline std::string name_of(Updates updates) {
  return updates == Updates::plain ? "plain" : updates == Updates::behind ? "behind" : "in the backward pass";
}

}  // namespace ddp::testing

// A training whose optimizer is sharded or plain: the numbers must be the same.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
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

  /// Other numbers on each rank, and in each step.
  void fill_gradient(std::size_t p, int step) {
    std::vector<T> elements(counts_[p]);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      auto const place = static_cast<double>(p * 31 + i * 7 + static_cast<std::size_t>(step) * 13);
      elements[i] = static_cast<T>(static_cast<float>(std::sin(place + 1.7 * world().rank().value())));
    }
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

/// How it trains.
struct ShardedWay {
  std::string name;
  DistributedDataParallelOptions options{};
  bool weights = false;     ///< set_weight(), another one on each rank
  int micro_steps = 1;      ///< all but the last under no_sync()
  bool leaves_out = false;  ///< a parameter that no rank marks, and one that only rank 0 marks
};

/// Where a slice is updated.
enum class Updates { plain, in_backward, behind };

inline std::vector<std::size_t> const kShardedCounts{5000, 3, 700, 1, 2048, 0, 64};
inline constexpr int kShardedSteps = 5;

template <class T>
[[nodiscard]] std::vector<std::vector<T>> train_sharded(ShardedWay const& way, Updates updates) {
  constexpr double kRates[] = {0.01, 0.03};
  ShardedModel<T> model(kShardedCounts);
  DistributedDataParallelOptions options = way.options;
  options.bucket_bytes = 4000_B;
  options.first_bucket_bytes = 1000_B;
  options.rebuild_buckets = false;
  options.sharding = updates == Updates::plain ? Sharding::none : Sharding::optimizer;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  std::vector<HostAdam<T>> optimizers;
  if (updates == Updates::plain) {
    for (std::size_t p = 0; p < model.count(); ++p) optimizers.emplace_back(kRates[p % 2]);
  } else {
    for (Slice const& slice : ddp.slices()) optimizers.emplace_back(kRates[slice.group]);
  }
  SliceReady const update = [&](Slice const& slice, Stream& stream) {
    optimizers[slice.index].update(slice.values, slice.gradient, stream);
  };
  if (updates == Updates::in_backward) ddp.on_slice_ready(update);
  for (int step = 0; step < kShardedSteps; ++step) {
    ddp.zero_gradients();
    for (int micro = 1; micro <= way.micro_steps; ++micro) {
      NoSyncGuard const guard = ddp.no_sync(micro < way.micro_steps);
      if (way.weights && micro == way.micro_steps) ddp.set_weight(1.0 + world().rank().value() + step);
      for (std::size_t p = model.count(); p-- > 0;) {
        if (way.leaves_out && (p == 2 || (p == 4 && world().rank() != 0))) continue;
        model.fill_gradient(p, step);
        ddp.gradient_ready(p);
      }
      ddp.synchronize();
    }
    if (updates == Updates::behind) ddp.update_slices(update);
    for (std::size_t p = 0; updates == Updates::plain && p < model.count(); ++p) {
      optimizers[p].update(model.value_at(p), model.gradient_at(p), world().stream());
    }
  }
  return model.values();
}

}  // namespace ddp::testing

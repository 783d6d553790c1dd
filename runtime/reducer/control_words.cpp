#include "reducer/control_words.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace ddp {
namespace {

// Step numbers are compared modulo this, so that sums of their squares over any number of ranks are exact.
constexpr std::uint64_t kStepCycle = 4093;

// The words of a lane whose compute stream is the calling thread: it waits for the step, so no word is in use
// when the next step writes it.
class HostControlWords final : public ControlWords {
 public:
  HostControlWords(ReducerLane const& lane, std::size_t parameters, bool every_rank)
      : ControlWords(lane, parameters, every_rank),
        used_(parameters),
        any_(every_rank ? 0 : parameters),
        all_(every_rank ? parameters * static_cast<std::size_t>(lane.communicator->size()) : 0) {}

  void begin(std::uint64_t step, double weight) override {
    step_ = step;
    weight_ = weight;
    sums_ = head_of(step, weight);
    lane().communicator->all_reduce(memory().head, ReduceOp::sum(), *lane().comm_stream);
    host_stream(*lane().comm_stream).enqueue([this] { check(); });
  }
  [[nodiscard]] double const& factor() const noexcept override { return factor_; }

 private:
  template <class T>
  [[nodiscard]] TensorView view(std::span<T> words) const {
    TensorView on_lane = view_of(words);
    on_lane.device = lane().device;
    return on_lane;
  }
  [[nodiscard]] Memory memory() noexcept override {
    return {view(std::span(&sums_.weight, sizeof(Head) / sizeof(double))), view(std::span(used_)),
            view(std::span(any_)), view(std::span(all_))};
  }
  void write_used(std::span<std::uint8_t const> used) override {
    std::copy(used.begin(), used.end(), used_.begin());
  }
  // Runs on the communication stream. Every rank has the same sums, so every rank throws or none does.
  void check() {
    auto const ranks = static_cast<double>(lane().communicator->size());
    if (!same_step(sums_, ranks)) throw_different_steps(lane().communicator->rank(), step_);
    if (sums_.has_weight != 0 && sums_.has_weight != ranks) {
      throw_some_weights(sums_.has_weight, ranks, step_);
    }
    factor_ = sums_.weight > 0 ? std::max(weight_, 0.0) / sums_.weight : 0.0;
  }

  std::uint64_t step_ = 0;
  double weight_ = -1;
  double factor_ = 1;
  Head sums_;
  std::vector<std::uint8_t> used_;
  std::vector<std::uint8_t> any_;
  std::vector<std::uint8_t> all_;
};

}  // namespace

ControlWords::ControlWords(ReducerLane const& lane, std::size_t parameters, bool every_rank)
    : lane_(lane),
      parameters_(parameters),
      every_rank_(every_rank),
      any_(parameters),
      all_(every_rank ? parameters * static_cast<std::size_t>(lane.communicator->size()) : 0) {}

std::unique_ptr<ControlWords> ControlWords::make(ReducerLane const& lane, std::size_t parameters,
                                                 bool every_rank) {
  if (lane.device.kind == DeviceKind::cuda) return cuda::make_control_words(lane, parameters, every_rank);
  return std::make_unique<HostControlWords>(lane, parameters, every_rank);
}

ControlWords::Head ControlWords::head_of(std::uint64_t step, double weight) noexcept {
  auto const number = static_cast<double>(step % kStepCycle);
  return {weight >= 0 ? weight : 0.0, weight >= 0 ? 1.0 : 0.0, number, number * number};
}

void ControlWords::throw_different_steps(Rank rank, std::uint64_t step) {
  throw CommError(
      ErrorCode::mismatch,
      text("ranks are in different steps: rank ", rank, " is in synchronised step ", step,
           ", others are not; does a rank skip synchronize(), or use no_sync() where others do not?"));
}

void ControlWords::throw_some_weights(double weights, double ranks, std::uint64_t step) {
  throw CommError(ErrorCode::mismatch,
                  text("set_weight() was called on ", weights, " of ", ranks, " ranks in step ", step,
                       "; call it on all of them (0 for a rank without samples) or on none"));
}

void ControlWords::finish(std::span<std::uint8_t const> used) {
  fetched_ = false;
  write_used(used);
  Memory const words = memory();
  if (every_rank_) {
    lane_.communicator->all_gather(words.used, words.all, *lane_.comm_stream);
  } else {
    lane_.communicator->all_reduce(words.used, words.any, ReduceOp::max(), *lane_.comm_stream);
  }
}

void ControlWords::fetch() {
  if (fetched_) return;
  Memory const words = memory();
  auto& fetched = every_rank_ ? all_ : any_;
  TensorView to = view_of(std::span(fetched));
  lane_.comm_stream->expect_wait();
  copy_elements(to, every_rank_ ? words.all : words.any, *lane_.comm_stream);
  lane_.comm_stream->synchronize();
  fetched_ = true;
  if (!every_rank_) return;
  for (std::size_t p = 0; p < parameters_; ++p) {
    any_[p] = 0;
    for (std::size_t i = p; i < all_.size(); i += parameters_) any_[p] = any_[p] | all_[i];
  }
}

}  // namespace ddp

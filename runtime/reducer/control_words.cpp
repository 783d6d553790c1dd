#include "reducer/control_words.hpp"

#include <algorithm>

#include "ddp/device/tensor_ops.hpp"

namespace ddp {
namespace {

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
    weight_ = std::max(weight, 0.0);
    sum_ = weight_;
    lane().communicator->begin_step(step, weight >= 0);
    lane().communicator->all_reduce(view(std::span(&sum_, 1)), ReduceOp::sum(), *lane().comm_stream);
    host_stream(*lane().comm_stream).enqueue([this] { factor_ = sum_ > 0 ? weight_ / sum_ : 0.0; });
  }
  // Ranks compare the head when it runs, and the compute stream, which is the caller, waits for that.
  void settle() override {}
  [[nodiscard]] double const& factor() const noexcept override { return factor_; }

 private:
  template <class T>
  [[nodiscard]] TensorView view(std::span<T> words) const {
    TensorView on_lane = view_of(words);
    on_lane.device = lane().device;
    return on_lane;
  }
  [[nodiscard]] Memory memory() noexcept override {
    return {view(std::span(used_)), view(std::span(any_)), view(std::span(all_))};
  }
  void write_used(std::span<std::uint8_t const> used) override {
    std::copy(used.begin(), used.end(), used_.begin());
  }

  double weight_ = 0;
  double sum_ = 0;  // over ranks, when the head is through
  double factor_ = 1;
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

#include "reducer/parts/step_head.hpp"

#include <span>

namespace ddp {
namespace {

// For a lane whose compute stream is the calling thread. That thread waits for the step, so the next step may
// write the same words. Without weights nothing is sent.
class HostStepHead final : public StepHead {
 public:
  explicit HostStepHead(ReducerLane const& lane) : StepHead(lane) {}

  void begin(std::uint64_t step, double weight, SinceLastStep since) override {
    lane().communicator->begin_step(step, weight >= 0, since);
    if (weight < 0) return;
    sum_ = weight_ = weight;
    TensorView sum = view_of(std::span(&sum_, 1));
    sum.device = lane().device;
    lane().communicator->all_reduce(sum, ReduceOp::sum(), *lane().comm_stream);
    host_stream(*lane().comm_stream).enqueue([this] { factor_ = sum_ > 0 ? weight_ / sum_ : 0.0; });
  }
  // Ranks compare the step's first operation when it runs, and the compute stream, which is the caller, waits
  // for that.
  SinceLastStep settle() override { return lane().communicator->settle_step(); }
  [[nodiscard]] double const& factor() const noexcept override { return factor_; }

 private:
  double weight_ = 0;
  double sum_ = 0;  // over ranks, once the head is done
  double factor_ = 1;
};

}  // namespace

std::unique_ptr<StepHead> StepHead::make(ReducerLane const& lane) {
  if (lane.device.kind == DeviceKind::cuda) return cuda::make_step_head(lane);
  return std::make_unique<HostStepHead>(lane);
}

}  // namespace ddp

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/fingerprint.hpp"
#include "core/pausing_deadline.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "reducer/cuda/word_kernels.hpp"
#include "reducer/parts/step_head.hpp"

namespace ddp::cuda {
namespace {

// Step numbers are summed modulo this, so that sums of their squares over any number of ranks are exact.
constexpr std::uint64_t kStepCycle = 4093;
// The same for called(), for up to 2^15 ranks: one in half a million pairs of different values looks equal.
constexpr std::uint64_t kCallsCycle = std::uint64_t{1} << 19U;
// How long a rank waits until the messages of other hosts tell which operations differ.
constexpr auto kUntilNamed = std::chrono::seconds(1);

HeadWords head_of(std::uint64_t step, double weight, SinceLastStep since,
                  CommunicatorBackend const& comm) noexcept {
  auto const number = static_cast<double>(step % kStepCycle);
  auto const calls = static_cast<double>(comm.called() % kCallsCycle);
  HeadWords words{};
  words.weight = weight >= 0 ? weight : 0.0;
  words.has_weight = weight >= 0 ? 1.0 : 0.0;
  words.step = number;
  words.step_squared = number * number;
  words.calls = calls;
  words.calls_squared = calls * calls;
  for (unsigned bit = 0; bit < 4; ++bit) {
    words.since[bit] = since.bits >> bit & 1U;
    if (bit % 2 == 1) words.without[bit / 2] = words.since[bit] * comm.rank().value();
  }
  return words;
}

// What a head showed, as rank `me` of `ranks` finds it.
std::string words_of(HeadVerdict const& found, Rank me, int ranks) {
  bool const one = found.ranks == 1;
  switch (found.kind) {
    case HeadVerdict::different_steps:
      return describe_other_step(me, found.step, "others are not");
    case HeadVerdict::different_calls:
      return text("ranks have called different operations before step ", found.step, ", as rank ", me,
                  " finds", kCallTheSame);
    case HeadVerdict::some_weights:
      return describe_some_weights(text(found.ranks, " of ", ranks, " ranks"), found.step);
    default:
      return describe_lone_step(
          text(one ? "rank " : "", one ? found.sum_of_ranks : found.ranks, one ? "" : " ranks"), "others",
          found.changes, found.step);
  }
}

// The host writes the head as arguments of a kernel; later kernels find everything in memory, so that they
// can be recorded. If ranks see each other's calls, their CPU threads find out whether all begin the same
// step, and without weights no head is sent. Otherwise (ranks of several hosts, ranks that share a GPU) the
// head itself tells: the host then waits until the GPU has passed it, at the end of the backward pass.
class CudaStepHead final : public StepHead {
 public:
  explicit CudaStepHead(ReducerLane const& lane)
      : StepHead(lane),
        head_(ddp::zeros(Shape{sizeof(HeadWords) / sizeof(double)}, DType::f64, lane.device)),
        own_(ddp::zeros(Shape{sizeof(OwnHead) / sizeof(double)}, DType::f64, lane.device)),
        factor_(ddp::zeros(Shape{1}, DType::f64, lane.device)),
        verdict_(std::make_shared<Verdict>(*lane.communicator)) {
    cuda_stream(*lane.comm_stream).watch(verdict_);
  }
  // The reducer has waited for the stream.
  ~CudaStepHead() override { verdict_->end(); }
  CudaStepHead(CudaStepHead const&) = delete;
  CudaStepHead& operator=(CudaStepHead const&) = delete;

  void begin(std::uint64_t step, double weight, SinceLastStep since) override {
    if (!announce(step, weight, since)) return;
    write(step, weight, since, *lane().comm_stream);
    send();
    if (!lane().communicator->sees_calls()) passed_head_ = comm_state().mark();
  }
  void record(double weight) override {
    if (is_sent(weight)) send();
  }
  void begin_replay(std::uint64_t step, double weight, Stream& stream) override {
    if (announce(step, weight, {})) write(step, weight, {}, stream);
  }
  SinceLastStep settle() override {
    SinceLastStep const all = lane().communicator->settle_step();
    if (lane().communicator->sees_calls()) return all;
    comm_state().wait_for(passed_head_, CudaStream::State::Questions::aside);
    verdict_->tell();
    return all;
  }
  [[nodiscard]] double const& factor() const noexcept override { return *factor_word(); }

 private:
  [[nodiscard]] bool is_sent(double weight) const noexcept {
    return weight >= 0 || !lane().communicator->sees_calls();
  }
  // Returns whether the step has a head.
  bool announce(std::uint64_t step, double weight, SinceLastStep since) {
    verdict_->tell();
    lane().communicator->begin_step(step, weight >= 0, since);
    return is_sent(weight);
  }
  void send() {
    lane().communicator->all_reduce(head_, ReduceOp::sum(), *lane().comm_stream);
    DeviceGuard const guard(lane().device);
    check_head(head_words(), lane().communicator->size(), own_words(), factor_word(), verdict_->words(),
               comm_state().handle());
    check(cudaPeekAtLastError(), "starting a step");
  }
  // Throws what a head showed, wherever the host waits for the stream.
  class Verdict final : public StreamWatch {
   public:
    explicit Verdict(CommunicatorBackend const& communicator)
        : rank_(communicator.rank()),
          ranks_(communicator.size()),
          memory_(ddp::pinned_zeros(Shape{sizeof(HeadVerdict)}, DType::u8)),
          communicator_(&communicator) {}
    [[nodiscard]] HeadVerdict* words() const noexcept {
      return static_cast<HeadVerdict*>(memory_.view().data);
    }
    /// Called when the GPU is done with the words. The communicator may be destroyed then. What a head shows
    /// whose group has failed is no failure of its own: later waits for the program's streams do not throw
    /// it.
    void end() const noexcept {
      try {
        check_group();
      } catch (std::exception const&) {
        program_knows();
      }
      std::lock_guard const lock(mutex_);
      communicator_ = nullptr;
    }
    [[nodiscard]] bool has_ended() const noexcept override {
      std::lock_guard const lock(mutex_);
      return communicator_ == nullptr;
    }
    [[nodiscard]] bool is_over() const noexcept override {
      return has_ended() && (words()->kind == HeadVerdict::none || is_known());
    }
    void check() const override {
      auto const kind = std::atomic_ref(words()->kind).load(std::memory_order_acquire);
      if (kind == HeadVerdict::none) return;
      // If the group has failed, its failure is the reason: a head that was not reduced can show anything.
      // Also, hosts that ask each other what they called can name the operations, a moment later.
      PausingDeadline named(kind == HeadVerdict::different_calls ? kUntilNamed : std::chrono::seconds(0));
      if (kind == HeadVerdict::different_calls) look_for_difference();
      while (check_group() && !named.ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      throw CommError(ErrorCode::mismatch, words_of(*words(), rank_, ranks_));
    }

   private:
    void look_for_difference() const {
      std::lock_guard const lock(mutex_);
      if (communicator_ != nullptr) communicator_->look_for_difference();
    }
    /// Throws the group's failure. Returns whether there still is a communicator that could find one.
    bool check_group() const {
      std::lock_guard const lock(mutex_);
      if (communicator_ != nullptr) communicator_->check_health();
      return communicator_ != nullptr;
    }

    Rank rank_;
    int ranks_;
    Tensor memory_;
    mutable std::mutex mutex_;
    mutable CommunicatorBackend const* communicator_;  // null after end()
  };

  void write(std::uint64_t step, double weight, SinceLastStep since, Stream& stream) {
    DeviceGuard const guard(lane().device);
    write_head(head_words(), head_of(step, weight, since, *lane().communicator), own_words(),
               {weight, static_cast<double>(step)}, cuda_stream(stream).handle());
    check(cudaPeekAtLastError(), "starting a step");
  }
  [[nodiscard]] CudaStream::State& comm_state() const { return *cuda_stream(*lane().comm_stream).state(); }
  [[nodiscard]] HeadWords* head_words() const noexcept { return static_cast<HeadWords*>(head_.view().data); }
  [[nodiscard]] OwnHead* own_words() const noexcept { return static_cast<OwnHead*>(own_.view().data); }
  [[nodiscard]] double* factor_word() const noexcept { return static_cast<double*>(factor_.view().data); }

  std::uint32_t passed_head_ = 0;  // a mark behind the head, if ranks cannot compare their calls
  Tensor head_;                    // sums, once it is sent
  Tensor own_;
  Tensor factor_;
  std::shared_ptr<Verdict const> verdict_;
};

}  // namespace

std::unique_ptr<StepHead> make_step_head(ReducerLane const& lane) {
  return std::make_unique<CudaStepHead>(lane);
}

}  // namespace ddp::cuda

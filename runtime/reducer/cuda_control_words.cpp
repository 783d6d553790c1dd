#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "ddp/device/cuda_stream.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda_check.hpp"
#include "reducer/control_words.hpp"
#include "reducer/cuda_word_kernels.hpp"

namespace ddp::cuda {
namespace {

// The host writes a step's words as arguments of kernels, and looks at what the GPU found whenever it waits
// or begins the next step: it never waits for a head.
class CudaControlWords final : public ControlWords {
 public:
  CudaControlWords(ReducerLane const& lane, std::size_t parameters, bool every_rank)
      : ControlWords(lane, parameters, every_rank),
        head_(zeros(Shape{sizeof(HeadWords) / sizeof(double)}, DType::f64, lane.device)),
        factor_(zeros(Shape{1}, DType::f64, lane.device)),
        used_(zeros(Shape{parameters}, DType::u8, lane.device)),
        any_(zeros(Shape{every_rank ? 0 : parameters}, DType::u8, lane.device)),
        all_(zeros(Shape{every_rank ? parameters * static_cast<std::size_t>(lane.communicator->size()) : 0},
                   DType::u8, lane.device)),
        verdict_(std::make_shared<Verdict>(lane.communicator->rank(), lane.communicator->size())) {
    cuda_stream(*lane.comm_stream).watch(verdict_);
  }
  // The reducer has waited for the stream.
  ~CudaControlWords() override { verdict_->end(); }
  CudaControlWords(CudaControlWords const&) = delete;
  CudaControlWords& operator=(CudaControlWords const&) = delete;

  void begin(std::uint64_t step, double weight) override {
    verdict_->check();
    Head const values = head_of(step, weight);
    {
      DeviceGuard const guard(lane().device);
      write_head(head_words(), {values.weight, values.has_weight, values.step, values.step_squared},
                 stream());
      check(cudaPeekAtLastError(), "starting a step");
    }
    lane().communicator->all_reduce(head_, ReduceOp::sum(), *lane().comm_stream);
    DeviceGuard const guard(lane().device);
    check_head(head_words(), lane().communicator->size(), weight, step, factor_word(), verdict_->words(),
               stream());
    check(cudaPeekAtLastError(), "starting a step");
  }
  [[nodiscard]] double const& factor() const noexcept override { return *factor_word(); }

 private:
  // Throws what a head showed, wherever the host waits for the stream.
  class Verdict final : public StreamWatch {
   public:
    Verdict(Rank rank, int ranks)
        : rank_(rank), ranks_(ranks), memory_(pinned_zeros(Shape{sizeof(HeadVerdict)}, DType::u8)) {}
    [[nodiscard]] HeadVerdict* words() const noexcept {
      return static_cast<HeadVerdict*>(memory_.view().data);
    }
    /// When the GPU has done with the words.
    void end() const noexcept { ended_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] bool is_over() const noexcept override {
      return ended_.load(std::memory_order_relaxed) && words()->kind == HeadVerdict::none;
    }
    void check() const override {
      switch (std::atomic_ref(words()->kind).load(std::memory_order_acquire)) {
        case HeadVerdict::different_steps:
          throw_different_steps(rank_, words()->step);
        case HeadVerdict::some_weights:
          throw_some_weights(words()->weights, ranks_, words()->step);
        default:
          return;
      }
    }

   private:
    Rank rank_;
    int ranks_;
    Tensor memory_;
    mutable std::atomic<bool> ended_{false};
  };

  [[nodiscard]] CUstream_st* stream() const { return cuda_stream(*lane().comm_stream).handle(); }
  [[nodiscard]] HeadWords* head_words() const noexcept { return static_cast<HeadWords*>(head_.view().data); }
  [[nodiscard]] double* factor_word() const noexcept { return static_cast<double*>(factor_.view().data); }
  [[nodiscard]] Memory memory() noexcept override { return {head_, used_, any_, all_}; }

  void write_used(std::span<std::uint8_t const> used) override {
    DeviceGuard const guard(lane().device);
    auto* const bytes = static_cast<std::uint8_t*>(used_.view().data);
    for (std::size_t first = 0; first < used.size(); first += kBitsPerLaunch) {
      std::size_t const count = std::min(kBitsPerLaunch, used.size() - first);
      Bits bits{};
      for (std::size_t i = 0; i < count; ++i) {
        bits[i / 32] |= static_cast<std::uint32_t>(used[first + i] != 0) << (i % 32);
      }
      write_bits(bytes + first, count, bits, stream());
    }
    check(cudaPeekAtLastError(), "ending a step");
  }

  Tensor head_;
  Tensor factor_;
  Tensor used_;
  Tensor any_;
  Tensor all_;
  std::shared_ptr<Verdict const> verdict_;
};

}  // namespace

std::unique_ptr<ControlWords> make_control_words(ReducerLane const& lane, std::size_t parameters,
                                                 bool every_rank) {
  return std::make_unique<CudaControlWords>(lane, parameters, every_rank);
}

}  // namespace ddp::cuda

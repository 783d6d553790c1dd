#include "ddp/device/cuda_stream.hpp"

#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <system_error>
#include <thread>

#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/driver_api.hpp"
#include "device/cuda/stream/stream_state.hpp"
#include "device/registry/device_registry.hpp"

namespace ddp {
namespace {

using Clock = std::chrono::steady_clock;

// After a failure the GPU must finish the stream's work before memory may be freed. The limit is for a GPU
// that hangs.
constexpr auto kLongestDrain = std::chrono::seconds(60);
// How long a wait spins before it sleeps between looks, and how often it asks its watches.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kPollNap = std::chrono::microseconds(50);
constexpr auto kBetweenChecks = std::chrono::milliseconds(1);
// How often a wait asks the driver whether the GPU is well, itself or in a thread made for it.
constexpr auto kBetweenQuestions = std::chrono::milliseconds(1);
constexpr auto kBetweenQuestionsAside = std::chrono::seconds(1);

template <class Function>
Function* stream_function(char const* name) {
  return cuda::driver_function<Function>(name, "a stream that waits for the host, or the host for it", "12");
}

CUdeviceptr address(std::uint32_t const* word) { return reinterpret_cast<CUdeviceptr>(word); }

cudaStream_t make_handle(Device device, CudaStream::Kind kind) {
  DeviceGuard const guard(device);
  unsigned const flags = kind == CudaStream::Kind::communication ? cudaStreamNonBlocking : cudaStreamDefault;
  cudaStream_t handle = nullptr;
  cuda::check(cudaStreamCreateWithPriority(&handle, flags, priority_of(kind)),
              text("making a stream of ", device));
  return handle;
}

Tensor pinned_words(Device device) {
  DeviceGuard const guard(device);
  return pinned_zeros(Shape{2}, DType::i32);
}

// Returns `handle` if it is a stream of `device`. A default stream is that of whichever GPU is current.
cudaStream_t require_stream_of(Device device, cudaStream_t handle) {
  if (is_default_stream(handle)) return handle;
  static auto* const find = cuda::driver_function<decltype(cuStreamGetCtx)>(
      "cuStreamGetCtx", "a stream of the program's own", "9.2");
  CUcontext context = nullptr;
  cuda::check_driver(find(handle, &context), "asking for the context of a stream");
  void* const before = cuda::current_context();
  cuda::set_current_context(context);
  int visible = 0;
  cudaError_t const result = cudaGetDevice(&visible);
  cuda::set_current_context(before);
  cuda::check(result, "asking for the GPU of a stream");
  int const expected = *logical_device(device).visible;
  require(visible == expected, text("CudaStream: expected a stream of ", device, ", which is CUDA's number ",
                                    expected, "; the handle is one of CUDA's number ", visible));
  return handle;
}

}  // namespace

int priority_of(CudaStream::Kind kind) {
  int lowest = 0;
  int highest = 0;
  cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "asking for the priorities of streams");
  return kind == CudaStream::Kind::communication ? highest : lowest;
}

CudaStream::State::State(Device device, cudaStream_t handle, bool owned, std::shared_ptr<void const> context)
    : device_(device),
      memory_(pinned_words(device)),
      words_(static_cast<std::uint32_t*>(memory_.view().data)),
      gate_(words_ + 1),
      queue_(std::make_shared<StreamQueue>(device, handle, owned, std::move(context))) {
  DeviceGuard const guard(device);
  cuda::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), text("making an event of ", device));
}

CudaStream::State::~State() {
  if (question_.valid()) question_.wait();
  cuda::end_on(device_, [this] { static_cast<void>(cudaEventDestroy(event_)); });
}

bool CudaStream::State::is_capturing() const {
  OnItsDevice const on(device_, handle());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaError_t const result = cudaStreamIsCapturing(handle(), &status);
  if (result == cudaErrorStreamCaptureImplicit) {
    static_cast<void>(cudaGetLastError());
    return true;
  }
  cuda::check(result, "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

// Locked: if two threads enqueued marks in the wrong order, the GPU would write the smaller one last.
std::uint32_t CudaStream::State::mark() {
  OnItsDevice const on(device_, handle());
  std::lock_guard const lock(mark_mutex_);
  static auto* const write = stream_function<decltype(cuStreamWriteValue32)>("cuStreamWriteValue32_v2");
  cuda::check_driver(write(handle(), address(words_), ++marks_, CU_STREAM_WRITE_VALUE_DEFAULT),
                     "marking a place in a stream");
  return marks_;
}

bool CudaStream::State::passed(std::uint32_t mark) const noexcept {
  std::uint32_t const now = std::atomic_ref(words_[0]).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(now - mark) >= 0;
}

bool CudaStream::State::is_idle(std::string_view failure) const {
  OnItsDevice const on(device_, handle());
  return cuda::is_done(cudaStreamQuery(handle()), failure);
}

void CudaStream::State::ask_aside() const {
  std::lock_guard const lock(question_mutex_);
  if (question_.valid()) {
    if (question_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    question_.get();
  }
  try {
    question_ = call_without_signals([this] {
      DeviceGuard const guard(device_);
      // Must not break a capture. This mode protects those of other streams; a captured stream is not asked.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      cuda::check(cudaThreadExchangeStreamCaptureMode(&mode), "asking whether a GPU is well");
      if (!is_capturing()) throw_if_gpu_failed();
    });
  } catch (std::system_error const& error) {  // no thread can be started now
    log(LogLevel::debug, error.what());
  }
}

void CudaStream::State::wait_for(std::uint32_t mark, Questions questions) const {
  std::chrono::milliseconds const between_questions =
      questions == Questions::aside ? kBetweenQuestionsAside : kBetweenQuestions;
  auto const begin = Clock::now();
  auto next_check = begin + kBetweenChecks;
  auto next_question = begin + between_questions;
  std::exception_ptr failure;
  auto give_up = Clock::time_point::max();
  while (!passed(mark)) {
    auto const now = Clock::now();
    if (now >= next_check) {
      next_check = now + kBetweenChecks;
      if (now >= next_question) {
        next_question = now + between_questions;
        if (questions == Questions::aside) {
          ask_aside();
        } else {
          throw_if_gpu_failed();
        }
      }
      if (!failure) {
        try {
          watches_.check();
        } catch (...) {
          failure = std::current_exception();
          give_up = now + kLongestDrain;
        }
      }
      if (now >= give_up) {
        log(LogLevel::error, text("work on ", device_, " has not ended ",
                                  std::chrono::duration_cast<std::chrono::seconds>(kLongestDrain).count(),
                                  " s after its failure"));
        break;
      }
    }
    if (now - begin > kSpin) std::this_thread::sleep_for(kPollNap);
  }
  if (failure) std::rethrow_exception(failure);
  watches_.check();
}

void CudaStream::State::wait_for_host(std::uint32_t number) {
  OnItsDevice const on(device_, handle());
  static auto* const wait = stream_function<decltype(cuStreamWaitValue32)>("cuStreamWaitValue32_v2");
  cuda::check_driver(wait(handle(), address(gate_.word()), number, CU_STREAM_WAIT_VALUE_GEQ),
                     "making a stream wait for the host");
}

void CudaStream::State::order_before(State& other) {
  {
    OnItsDevice const on(device_, handle());
    cuda::check(cudaEventRecord(event_, handle()), "recording an event");
  }
  OnItsDevice const on(other.device_, other.handle());
  cuda::check(cudaStreamWaitEvent(other.handle(), event_, 0), "making a stream wait for another");
  watches_.pass_to(other.watches_);
}

CudaStream::CudaStream(Device device, Kind kind)
    : state_(std::make_shared<State>(device, make_handle(device, kind), true)) {}
CudaStream::CudaStream(Device device, CUstream_st* handle)
    : state_(std::make_shared<State>(device, require_stream_of(device, handle), false)) {}
CudaStream::CudaStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
CudaStream::~CudaStream() = default;

Device CudaStream::device() const noexcept { return state_->device(); }
CUstream_st* CudaStream::handle() const noexcept { return state_->handle(); }
void CudaStream::watch(std::shared_ptr<StreamWatch const> watch) { state_->watches().add(std::move(watch)); }

void CudaStream::synchronize() {
  state_->watches().forget();
  auto const dues = state_->watches().dues();
  state_->wait_for(state_->mark(), State::Questions::direct);
  for (StreamWatches::Due const due : dues) state_->watches().settle(due);
}

void CudaStream::wait(Stream& other) {
  if (&other == this) return;
  if (other.device().kind == DeviceKind::cuda) {
    cuda_stream(other).state_->order_before(*state_);
    return;
  }
  HostStream& host = host_stream(other);
  if (host.is_inline()) return;  // what it was given is done
  state_->watches().add(host.watch());
  host.keep_alive(state_);
  State* const state = state_.get();
  std::uint32_t const number = state->gate().expect();
  try {
    host.enqueue_always([state, number] { state->gate().came(number); });
  } catch (...) {
    state->gate().came(number);  // nobody waits for it, but a gap would hold up larger numbers
    throw;
  }
  state->wait_for_host(number);
}

void CudaStream::block(HostStream& host) {
  state_->watches().forget();
  std::uint32_t const mark = state_->mark();
  host.keep_alive(state_);
  State* const state = state_.get();
  host.enqueue([state, mark] { state->wait_for(mark, State::Questions::aside); });
  for (std::size_t place = 0; auto const due = state->watches().due(place); ++place) {
    host.enqueue([state, due = *due] { state->watches().settle(due); });
  }
}

bool CudaStream::is_capturing() const { return state_->is_capturing(); }

// Until a wait throws nothing: another failure may come between two of them.
bool forget_failures(CudaStream& stream) noexcept {
  CudaStream::State& state = *stream.state();
  bool is_first = true;
  for (int in_vain = 0; in_vain < 2; is_first = false) {
    try {
      // Nothing ends a second wait for a GPU that hangs.
      if (!is_first && !state.is_idle("work on a GPU failed")) return false;
      stream.synchronize();
      return true;
    } catch (std::exception const& error) {
      log(LogLevel::debug, error.what());
      if (!state.watches().forget_failed()) ++in_vain;
    }
  }
  return false;
}

bool cuda::forget_failures(Stream& stream) noexcept {
  return stream.device().kind != DeviceKind::cuda || ddp::forget_failures(cuda_stream(stream));
}

CudaStream& cuda_stream(Stream& stream) {
  auto* const cuda = dynamic_cast<CudaStream*>(&stream);
  require(cuda != nullptr, [&] {
    return text("cuda_stream(): expected a stream of a GPU, found one of ", stream.device(), "; ",
                DeviceRegistry::of_process().describe_gpus(),
                ". Give the rank a GPU (ddp-launch --check looks at the driver), or ask "
                "World::device() first where ranks may be on the CPU");
  });
  return *cuda;
}

}  // namespace ddp

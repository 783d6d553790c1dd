#include "nn/context.hpp"

#include <exception>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"

namespace nn {

struct Context::State {
  std::unique_ptr<ddp::Stream> own;
  ddp::Stream* stream = nullptr;
  std::shared_ptr<cublasContext> cublas;
  bool failed = false;  // the stream, when somebody waited for it
};

// Memory with the stream that may still use it when nobody else does. While an exception flies, work on the
// stream may wait for ranks that wait for this one: then nobody waits here, and the memory is left alone. The
// same if the stream has failed.
struct Context::Guarded {
  std::shared_ptr<State> state;
  std::unique_ptr<ddp::Tensor> memory;
  int exceptions_at_start = std::uncaught_exceptions();

  Guarded(std::shared_ptr<State> user, ddp::Tensor const& used)
      : state(std::move(user)), memory(std::make_unique<ddp::Tensor>(used)) {}
  Guarded(Guarded const&) = delete;
  Guarded& operator=(Guarded const&) = delete;
  ~Guarded() {
    if (std::uncaught_exceptions() <= exceptions_at_start && !state->failed) {
      try {
        state->stream->synchronize();
        return;
      } catch (std::exception const& error) {
        state->failed = true;
        ddp::log(ddp::LogLevel::debug, ddp::text("freeing ", ddp::describe(*memory), ": ", error.what()));
      }
    }
    static_cast<void>(memory.release());
  }
};

Context::Context() : state_(std::make_shared<State>()) {
  state_->own = ddp::HostStream::inline_stream();
  state_->stream = state_->own.get();
}

Context::Context(ddp::Stream& stream) : state_(std::make_shared<State>()) {
  state_->stream = &stream;
  ddp::require(on_gpu() || ddp::host_stream(stream).is_inline(),
               "nn::Context: the CPU's layers work in the calling thread; expected its stream "
               "(HostStream::inline_stream, World::stream), found one with a thread of its own");
}

ddp::Device Context::device() const noexcept { return state_->stream->device(); }
ddp::Stream& Context::stream() const noexcept { return *state_->stream; }

ddp::Tensor Context::guarded(ddp::Tensor const& memory) const {
  if (!on_gpu() || memory.view().data == nullptr) return memory;
  return {memory.view(), std::make_shared<Guarded>(state_, memory)};
}

ddp::Tensor Context::zeros(ddp::Shape const& shape, ddp::DType dtype) const {
  return guarded(ddp::zeros(shape, dtype, device()));
}

ddp::Tensor Context::pinned_zeros(ddp::Shape const& shape, ddp::DType dtype) const {
  return guarded(on_gpu() ? ddp::pinned_zeros(shape, dtype) : ddp::Tensor::zeros(shape, dtype));
}

void Context::upload(ddp::TensorView const& from, ddp::TensorView const& to) const {
  ddp::copy_elements(to, from, stream());
  stream().synchronize();
}

ddp::Tensor Context::download(ddp::TensorView const& from) const {
  ddp::Tensor copy = ddp::Tensor::zeros(from.shape, from.dtype);
  ddp::copy_elements(copy, from, stream());
  stream().synchronize();
  return copy;
}

cublasContext* Context::cublas() const {
  if (!state_->cublas) state_->cublas = cuda::make_cublas(stream());
  return state_->cublas.get();
}

}  // namespace nn

#include "parallel/step_memory.hpp"

#include <exception>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {

// If the stream has failed, work on it may still be under way: then the memory is left alone.
struct StepMemory::Guarded {
  std::shared_ptr<Stream> stream;
  std::unique_ptr<Tensor> memory;

  Guarded(std::shared_ptr<Stream> user, Tensor const& used)
      : stream(std::move(user)), memory(std::make_unique<Tensor>(used)) {}
  Guarded(Guarded const&) = delete;
  Guarded& operator=(Guarded const&) = delete;
  ~Guarded() {
    if (stream->device().kind == DeviceKind::cpu) return;
    try {
      stream->synchronize();
    } catch (std::exception const& error) {
      log(LogLevel::debug, text("freeing ", describe(*memory), ": ", error.what()));
      static_cast<void>(memory.release());
    }
  }
};

Tensor StepMemory::take(Shape const& shape, DType dtype) {
  std::size_t const bytes = shape.count() * size_of(dtype);
  if (next_ == pieces_.size()) pieces_.emplace_back();
  std::shared_ptr<Guarded>& piece = pieces_[next_++];
  bool const fits = piece && piece.use_count() == 1 && piece->memory->view().bytes() >= bytes;
  if (!fits) {
    bool const pinned = device_.kind == DeviceKind::cpu && stream_->device().kind == DeviceKind::cuda;
    Tensor const fresh =
        pinned ? pinned_zeros(Shape{bytes}, DType::u8) : zeros(Shape{bytes}, DType::u8, device_);
    piece = std::make_shared<Guarded>(stream_, fresh);
  }
  return {TensorView{piece->memory->view().data, shape, dtype, device_}, piece};
}

}  // namespace ddp

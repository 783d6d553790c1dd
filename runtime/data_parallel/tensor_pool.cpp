#include "data_parallel/tensor_pool.hpp"

#include <exception>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {

// If the stream has failed, work on it may still be under way: then the memory is left alone.
struct TensorPool::Guarded {
  std::shared_ptr<Stream> stream;
  std::unique_ptr<Tensor> memory;

  Guarded(std::shared_ptr<Stream> user, Tensor const& used)
      : stream(std::move(user)), memory(std::make_unique<Tensor>(used)) {}
  [[nodiscard]] std::size_t bytes() const noexcept { return memory->view().bytes(); }

  Guarded(Guarded const&) = delete;
  Guarded& operator=(Guarded const&) = delete;
  ~Guarded() {
    try {
      stream->synchronize();
    } catch (std::exception const& error) {
      log(LogLevel::debug, text("freeing ", describe(*memory), ": ", error.what()));
      static_cast<void>(memory.release());
    }
  }
};

Tensor TensorPool::take(Shape const& shape, DType dtype) {
  std::size_t const bytes = shape.count() * size_of(dtype);
  std::shared_ptr<Guarded>* free = nullptr;  // the smallest that fits, otherwise any
  auto const fits = [bytes](std::shared_ptr<Guarded> const& piece) { return piece->bytes() >= bytes; };
  for (std::shared_ptr<Guarded>& piece : pieces_) {
    if (piece.use_count() > 1) continue;
    bool const better =
        free == nullptr || (fits(piece) && (!fits(*free) || piece->bytes() < (*free)->bytes()));
    if (better) free = &piece;
  }
  if (free == nullptr || !fits(*free)) {
    bool const pinned = device_.kind == DeviceKind::cpu && stream_->device().kind == DeviceKind::cuda;
    Tensor const fresh =
        pinned ? pinned_zeros(Shape{bytes}, DType::u8) : zeros(Shape{bytes}, DType::u8, device_);
    auto piece = std::make_shared<Guarded>(stream_, fresh);
    if (free == nullptr) free = &pieces_.emplace_back();
    *free = std::move(piece);
  }
  return {TensorView{(*free)->memory->view().data, shape, dtype, device_}, *free};
}

}  // namespace ddp

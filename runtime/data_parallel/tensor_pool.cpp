#include "data_parallel/tensor_pool.hpp"

#include <exception>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {
namespace {

// The last owner waits for the stream. If that fails, work on it may still be under way, so the memory is
// never freed.
std::shared_ptr<Tensor> guarded(Tensor memory, std::shared_ptr<Stream> stream) {
  auto const let_go = [stream = std::move(stream)](Tensor* last) noexcept {
    std::unique_ptr<Tensor> owned(last);
    try {
      stream->synchronize();
    } catch (std::exception const& error) {
      log(LogLevel::debug, text("freeing ", describe(*owned), ": ", error.what()));
      static_cast<void>(owned.release());
    }
  };
  return {std::make_unique<Tensor>(std::move(memory)).release(), let_go};
}

}  // namespace

Tensor TensorPool::take(Shape const& shape, DType dtype) {
  std::size_t const bytes = shape.count() * size_of(dtype);
  std::shared_ptr<Tensor>* free = nullptr;  // the smallest that fits, otherwise any
  auto const size = [](std::shared_ptr<Tensor> const& piece) { return piece->view().bytes(); };
  for (std::shared_ptr<Tensor>& piece : pieces_) {
    if (piece.use_count() > 1) continue;
    bool const better =
        free == nullptr || (size(piece) >= bytes && (size(*free) < bytes || size(piece) < size(*free)));
    if (better) free = &piece;
  }
  if (free == nullptr || size(*free) < bytes) {
    bool const pinned = device_.kind == DeviceKind::cpu && stream_->device().kind == DeviceKind::cuda;
    auto piece = guarded(
        pinned ? pinned_zeros(Shape{bytes}, DType::u8) : zeros(Shape{bytes}, DType::u8, device_), stream_);
    if (free == nullptr) free = &pieces_.emplace_back();
    *free = std::move(piece);
  }
  return {TensorView{(*free)->view().data, shape, dtype, device_}, *free};
}

}  // namespace ddp

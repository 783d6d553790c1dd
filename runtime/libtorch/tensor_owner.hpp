// Tensors of PyTorch kept alive by the runtime, without an allocation.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace ddp::libtorch {

/// Memory for the control block of one shared_ptr, reused when that is gone; if it is still in use, the next
/// control block is allocated. Must outlive the shared_ptrs.
class TensorOwner {
 public:
  TensorOwner() = default;
  TensorOwner(TensorOwner const&) = delete;
  TensorOwner& operator=(TensorOwner const&) = delete;

  /// Keeps `tensor` until the last copy of the result is gone. One thread at a time; copies in any.
  [[nodiscard]] std::shared_ptr<void> keep(at::Tensor tensor) {
    return {static_cast<void*>(tensor.unsafeReleaseTensorImpl()), Release{}, Allocator<std::byte>{this}};
  }

 private:
  struct Release {
    void operator()(void* tensor) const noexcept {
      static_cast<void>(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
          static_cast<c10::TensorImpl*>(tensor)));
    }
  };
  template <class T>
  struct Allocator {
    using value_type = T;
    TensorOwner* owner;
    explicit Allocator(TensorOwner* from) noexcept : owner(from) {}
    template <class U>
    explicit(false) Allocator(Allocator<U> const& other) noexcept : owner(other.owner) {}
    T* allocate(std::size_t n) {
      static_assert(alignof(T) <= alignof(std::max_align_t));
      if (n * sizeof(T) <= sizeof(owner->memory_) &&
          !owner->taken_.exchange(true, std::memory_order_acquire)) {
        return reinterpret_cast<T*>(owner->memory_);
      }
      return static_cast<T*>(::operator new(n * sizeof(T)));
    }
    void deallocate(T* memory, std::size_t /*n*/) noexcept {
      if (reinterpret_cast<std::byte*>(memory) == owner->memory_) {
        owner->taken_.store(false, std::memory_order_release);
      } else {
        ::operator delete(memory);
      }
    }
    template <class U>
    bool operator==(Allocator<U> const& other) const noexcept {
      return owner == other.owner;
    }
  };

  alignas(std::max_align_t) std::byte memory_[64];
  std::atomic<bool> taken_{false};
};

}  // namespace ddp::libtorch

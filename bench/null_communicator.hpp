// A communicator that moves nothing: what is left is the host's work.
#pragma once

#include "comm/communicator_backend.hpp"

namespace ddp::bench {

/// Accepts every operation and enqueues none.
class NullCommunicator final : public CommunicatorBackend {
 public:
  NullCommunicator(Rank rank, int size) noexcept : CommunicatorBackend(rank, size, Device{}) {}

  [[nodiscard]] std::string_view backend() const noexcept override { return "null"; }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override { return Tensor::zeros(Shape{bytes.value}, DType::u8); }
  void check_health() const override {}
  void abort(std::string_view /*reason*/) noexcept override {}

  /// How many operations were asked for, so that a measurement can prove that it measured them.
  [[nodiscard]] std::size_t operations() const noexcept { return operations_; }

 protected:
  void enqueue(std::span<Operation const> operations, Stream& /*stream*/) override {
    operations_ += operations.size();
  }

 private:
  std::size_t operations_ = 0;
};

}  // namespace ddp::bench

// A group of one rank.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "comm/communicator_backend.hpp"
#include "comm/group/group_failure.hpp"
#include "comm/last_operation.hpp"

namespace ddp {

/// Copies, and multiplies by the factor if there is one. In place without a factor it does nothing. Memory of
/// any device.
class SoloCommunicator final : public CommunicatorBackend {
 public:
  /// `timeout`: of split() and allocate(), which wait for operations.
  SoloCommunicator(Device device, std::chrono::milliseconds timeout);

  [[nodiscard]] std::string_view backend() const noexcept override { return "solo"; }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override;
  void check_health() const override { failure_.throw_if_set(rank()); }
  [[nodiscard]] bool sees_calls() const noexcept override { return true; }
  [[nodiscard]] SinceLastStep settle_step() override { return since_; }
  [[nodiscard]] std::string why_not_recorded() const override;
  /// Work that is on a stream already waits for no other rank, and ends as it would have.
  void abort(std::string_view reason) noexcept override {
    static_cast<void>(failure_.set(
        {.code = ErrorCode::aborted, .ranks = {rank()}, .detail = std::string(reason), .ended_by = rank()}));
  }

 private:
  void enqueue(std::span<Operation const> operations, Stream& stream) override;
  void run(Operation const& operation, Stream& stream);
  void finish_operations(char const* what) const;

  std::chrono::milliseconds timeout_;
  LastOperation last_;
  SinceLastStep since_;
  GroupFailure failure_{};
};

}  // namespace ddp

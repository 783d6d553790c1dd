// Shows when the operations of any communicator ran.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator_backend.hpp"
#include "ddp/device/span_recorder.hpp"

namespace ddp {

/// Passes everything on to the communicator that it wraps, and puts a span for each operation or group onto a
/// track of a trace: from when its stream reaches it until it is done, including the wait for other ranks.
/// The host waits for nothing; see SpanRecorder. Communicators split from it are traced too.
class TracingCommunicator final : public CommunicatorBackend {
 public:
  /// `track`: the name of its row of the timeline; "": the name of the backend.
  TracingCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<ChromeTrace> trace,
                      std::string_view track = {});
  /// `communicator` itself if `trace` is null.
  [[nodiscard]] static std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> communicator,
                                                          std::shared_ptr<ChromeTrace> const& trace);

  [[nodiscard]] std::string_view backend() const noexcept override { return inner_->backend(); }
  /// Names the next span.
  void annotate(char const* what, std::size_t index) noexcept override;
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override { return inner_->allocate(bytes); }
  void combine_in_rank_order() override { backend_of(*inner_).combine_in_rank_order(); }
  void check_health() const override { inner_->check_health(); }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }
  [[nodiscard]] bool sees_calls() const noexcept override { return backend_of(*inner_).sees_calls(); }
  SinceLastStep settle_step() override { return backend_of(*inner_).settle_step(); }
  void look_for_difference() const override { backend_of(*inner_).look_for_difference(); }
  [[nodiscard]] std::uint64_t called() const noexcept override { return backend_of(*inner_).called(); }
  [[nodiscard]] std::string why_not_recorded() const override {
    return "a timeline is written (DDP_TRACE), which shows operations only where the host enqueues them";
  }

 private:
  void enqueue(std::span<Operation const> operations, Stream& stream) override;

  std::string track_;
  int splits_ = 0;
  std::shared_ptr<ChromeTrace> trace_;
  SpanRecorder recorder_;
  std::unique_ptr<Communicator> inner_;  // destroyed before recorder_: its operations have ended by then
  SpanLabel label_;                      // of the next span
};

}  // namespace ddp

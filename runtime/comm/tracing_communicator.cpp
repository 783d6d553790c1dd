#include "comm/tracing_communicator.hpp"

#include <utility>

#include "ddp/core/text.hpp"

namespace ddp {

TracingCommunicator::TracingCommunicator(std::unique_ptr<Communicator> inner,
                                         std::shared_ptr<ChromeTrace> trace, std::string_view track)
    : CommunicatorBackend(inner->rank(), inner->size(), inner->device()),
      track_(track.empty() ? text("communication (", inner->backend(), ")") : std::string(track)),
      trace_(std::move(trace)),
      recorder_(trace_, track_, inner->device()),
      inner_(std::move(inner)) {}

std::unique_ptr<Communicator> TracingCommunicator::wrap(std::unique_ptr<Communicator> communicator,
                                                        std::shared_ptr<ChromeTrace> const& trace) {
  if (!trace || !communicator) return communicator;
  return std::make_unique<TracingCommunicator>(std::move(communicator), trace);
}

std::unique_ptr<Communicator> TracingCommunicator::split_off(std::span<Rank const> ranks) {
  int const number = ++splits_;
  auto part = inner_->split(ranks);
  if (!part) return nullptr;
  return std::make_unique<TracingCommunicator>(std::move(part), trace_, text(track_, ", split ", number));
}

void TracingCommunicator::annotate(char const* what, std::size_t index) noexcept {
  label_ = {};
  if (what[0] == '\0') return;
  label_.what = what;
  label_.index = index;
}

void TracingCommunicator::enqueue(std::span<Operation const> operations, Stream& stream) {
  SpanLabel label = std::exchange(label_, {});
  label.category = "communication";
  SpanRecorder::Open span = recorder_.begin(stream);
  try {
    backend_of(*inner_).enqueue(operations, stream);
  } catch (...) {
    recorder_.drop(span, stream);
    throw;
  }
  for (Operation const& operation : operations) {
    if (label.what[0] == '\0') label.what = to_string(operation.kind);
    if (!label.dtype && operation.kind != OperationKind::barrier) label.dtype = operation.dtype;
    std::size_t const blocks = has_block_of_every_rank(operation.kind) ? static_cast<std::size_t>(size()) : 1;
    label.bytes.value += operation.count * size_of(operation.dtype) * blocks;
  }
  recorder_.end(span, stream, label);
}

}  // namespace ddp

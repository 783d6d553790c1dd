#include "ddp/comm/tracing_communicator.hpp"

#include <utility>

#include "ddp/core/text.hpp"

namespace ddp {

TracingCommunicator::TracingCommunicator(std::unique_ptr<Communicator> inner,
                                         std::shared_ptr<ChromeTrace> trace, std::string_view track)
    : Communicator(inner->rank(), inner->size(), inner->device()),
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
  label_.what = what;
  label_.index = index;
}

void TracingCommunicator::begin_span(Stream& stream) {
  span_stream_ = &stream;
  span_ = recorder_.begin(stream);
}

void TracingCommunicator::end_span(bool show) {
  Stream* const stream = std::exchange(span_stream_, nullptr);
  SpanLabel label = std::exchange(label_, {});
  label.category = "communication";
  if (stream == nullptr) return;
  if (show) {
    recorder_.end(span_, *stream, label);
  } else {
    recorder_.drop(span_, *stream);
  }
}

void TracingCommunicator::enqueue(Operation const& operation, Stream& stream) {
  if (span_stream_ == nullptr) begin_span(stream);
  try {
    forward(*inner_, operation, stream);
  } catch (...) {
    if (!in_group_) end_span(false);
    throw;
  }
  if (label_.what[0] == '\0') label_.what = to_string(operation.kind);
  if (!label_.dtype && operation.kind != OperationKind::barrier) label_.dtype = operation.dtype;
  bool const every_ranks_part = operation.kind == OperationKind::reduce_scatter ||
                                operation.kind == OperationKind::all_gather ||
                                operation.kind == OperationKind::all_to_all;
  label_.bytes.value += operation.count * size_of(operation.dtype) *
                        (every_ranks_part ? static_cast<std::size_t>(size()) : std::size_t{1});
  if (!in_group_) end_span(true);
}

void TracingCommunicator::begin_group() {
  forward_begin_group(*inner_);
  in_group_ = true;
}

void TracingCommunicator::end_group(bool start) {
  in_group_ = false;
  try {
    forward_end_group(*inner_, start);
  } catch (...) {
    end_span(false);
    throw;
  }
  end_span(start);
}

}  // namespace ddp

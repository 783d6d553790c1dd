#include "ddp/device/span_recorder.hpp"

#include <algorithm>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "device/stream/event_clock.hpp"

namespace ddp {

SpanRecorder::SpanRecorder(std::shared_ptr<ChromeTrace> trace, std::string_view track, Device device,
                           std::size_t capacity)
    : trace_(std::move(trace)),
      track_(trace_->add_track(track)),
      device_(device),
      capacity_(capacity),
      clock_(std::make_unique<EventClock>(device)) {
  require(capacity > 0, "a SpanRecorder needs room for at least one span");
  slots_.reserve(capacity);
}

SpanRecorder::~SpanRecorder() {
  try {
    flush();
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("the last spans are missing in ", trace_->file(), ": ", error.what()));
  }
}

SpanRecorder::Open SpanRecorder::begin(Stream& stream) {
  if (!trace_->recording()) return std::nullopt;
  // At most two at a time, and only when half the room is used: reading takes microseconds.
  if (unread() * 2 > capacity_ && read_oldest()) read_oldest();
  if (unread() == capacity_) return std::nullopt;
  std::size_t const place = next_ % capacity_;
  if (place == slots_.size()) slots_.emplace_back(device_);
  Slot& slot = slots_[place];
  slot.begin.record(stream);
  slot.closed = false;
  return next_++;
}

void SpanRecorder::end(Open span, Stream& stream, SpanLabel const& label) {
  close(span, stream, label, false);
}

void SpanRecorder::drop(Open span, Stream& stream) { close(span, stream, {}, true); }

void SpanRecorder::close(Open span, Stream& stream, SpanLabel const& label, bool dropped) {
  if (!span) return;
  Slot& slot = slots_[*span % capacity_];
  slot.end.record(stream);
  slot.label = label;
  slot.dropped = dropped;
  slot.closed = true;
}

// Returns whether the oldest span had ended. Only then are its events used again: until they are reached, a
// stream may still write to them.
bool SpanRecorder::read_oldest() {
  if (unread() == 0) return false;
  Slot& slot = slots_[oldest_ % capacity_];
  if (!slot.closed || !slot.end.reached()) return false;
  ++oldest_;
  if (slot.dropped) return true;
  auto const begin = clock_->time_of(slot.begin);
  auto const end = std::max(begin, clock_->time_of(slot.end));
  SpanLabel const& label = slot.label;
  trace_->add({track_, label.index ? text(label.what, ' ', *label.index) : label.what, label.category, begin,
               end, label.bytes, label.dtype});
  return true;
}

void SpanRecorder::flush() {
  if (unread() == 0) return;
  clock_->compare();
  while (read_oldest()) {
  }
}

ScopedSpan::ScopedSpan(SpanRecorder* recorder, Stream& stream, SpanLabel const& label)
    : recorder_(recorder), stream_(stream), label_(label) {
  if (recorder_ != nullptr) span_ = recorder_->begin(stream_);
}

ScopedSpan::~ScopedSpan() {
  if (recorder_ == nullptr) return;
  try {
    recorder_->end(span_, stream_, label_);
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("a span of ", label_.what, " was not recorded: ", error.what()));
  }
}

}  // namespace ddp

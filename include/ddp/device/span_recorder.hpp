// Times work on streams for a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/device/event.hpp"
#include "ddp/observe/chrome_trace.hpp"

namespace DDP_EXPORT ddp {

class EventClock;

/// How a span is shown. Texts are literals, so that labelling allocates nothing.
struct SpanLabel {
  char const* what = "";               ///< "bucket"
  std::optional<std::size_t> index{};  ///< 3: "bucket 3"
  char const* category = "";           ///< "communication"
  Bytes bytes{};                       ///< 0: not shown
  std::optional<DType> dtype{};        ///< nullopt: not shown
};

/// Puts spans of work on streams of one device onto one track of a trace. An event goes onto the stream at
/// each end of a span; the host does not wait, and reads the times later. Spans that end while `capacity` of
/// them are unread are not recorded. One thread at a time.
class SpanRecorder {
 public:
  /// Identifies an open span; empty while the trace does not record.
  using Open = std::optional<std::uint64_t>;

  /// Spans of `device` go to the track of that name.
  SpanRecorder(std::shared_ptr<ChromeTrace> trace, std::string_view track, Device device,
               std::size_t capacity = 1024);
  /// Reads the remaining times. The streams must have reached everything that was recorded.
  ~SpanRecorder();
  SpanRecorder(SpanRecorder const&) = delete;
  SpanRecorder& operator=(SpanRecorder const&) = delete;

  /// Begins a span: of what is enqueued on `stream` from now on. Spans may nest.
  [[nodiscard]] Open begin(Stream& stream);
  /// Ends it: what was enqueued until now belongs to the span.
  void end(Open span, Stream& stream, SpanLabel const& label);
  /// Ends a span that is not to be shown.
  void drop(Open span, Stream& stream);

  /// Passes all spans that the streams have finished to the trace. Compares the device's clock with the
  /// host's, which waits a little.
  void flush();

 private:
  struct Slot {
    explicit Slot(Device device) : begin(device), end(device) {}
    Event begin;
    Event end;
    SpanLabel label;
    bool closed = false;
    bool dropped = false;
  };
  [[nodiscard]] std::size_t unread() const noexcept { return static_cast<std::size_t>(next_ - oldest_); }
  bool read_oldest();
  void close(Open span, Stream& stream, SpanLabel const& label, bool dropped);

  std::shared_ptr<ChromeTrace> trace_;
  ChromeTrace::Track track_;
  Device device_;
  std::size_t capacity_;
  std::unique_ptr<EventClock> clock_;
  std::vector<Slot> slots_;  // span n is in slot n % capacity
  std::uint64_t oldest_ = 0;
  std::uint64_t next_ = 0;
};

/// A span from here to the end of the scope; none without a recorder.
class [[nodiscard]] ScopedSpan {
 public:
  /// Nothing is recorded where `recorder` is null.
  ScopedSpan(SpanRecorder* recorder, Stream& stream, SpanLabel const& label);
  ~ScopedSpan();
  ScopedSpan(ScopedSpan const&) = delete;
  ScopedSpan& operator=(ScopedSpan const&) = delete;

 private:
  SpanRecorder* recorder_;
  Stream& stream_;
  SpanLabel label_;
  SpanRecorder::Open span_;
};

}  // namespace ddp

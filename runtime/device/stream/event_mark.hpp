// How an event works on one kind of device.
#pragma once

#include "ddp/device/event.hpp"

namespace ddp {

/// A place in the work of a stream.
class Event::Mark {
 public:
  virtual ~Mark() = default;
  virtual void record(Stream& stream) = 0;  ///< Marks the stream's place.
  virtual void record_in_replays(Stream& stream) { record(stream); }
  [[nodiscard]] virtual CUevent_st* handle() const noexcept { return nullptr; }
  [[nodiscard]] virtual bool reached() const = 0;  ///< Whether the stream got there.
  virtual void block(Stream& stream) = 0;          ///< Makes a stream wait for the place.
  /// Since `earlier`, a mark of the same kind.
  [[nodiscard]] virtual double milliseconds_since(Mark const& earlier) const = 0;
};

}  // namespace ddp

// A point on a stream, and the time at which it was reached.
#pragma once

#include <memory>

#include "ddp/core/device.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Marks a place in the work of a stream. On a GPU the time is the GPU's. One thread at a time.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// Marks what is enqueued on `stream`, a stream of this event's device, until now; replaces an earlier
  /// mark. The event must live until it is reached.
  void record(Stream& stream);
  /// Whether the mark has been reached. False before the first record().
  [[nodiscard]] bool reached() const;

  /// Milliseconds between two marks that have been reached, of one device.
  [[nodiscard]] static double milliseconds(Event const& from, Event const& to);

  /// The implementation for one kind of device.
  class Mark {
   public:
    virtual ~Mark() = default;
    virtual void record(Stream& stream) = 0;
    [[nodiscard]] virtual bool reached() const = 0;
    /// Since `earlier`, a mark of the same kind.
    [[nodiscard]] virtual double milliseconds_since(Mark const& earlier) const = 0;
  };

 private:
  std::unique_ptr<Mark> mark_;
};

}  // namespace ddp

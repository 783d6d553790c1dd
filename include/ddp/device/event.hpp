// A point on a stream, and the time at which it was reached.
#pragma once

#include <memory>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/device/stream.hpp"

struct CUevent_st;  // what cudaEvent_t points to

namespace DDP_EXPORT ddp {

/// Marks a place in the work of a stream. On a GPU the time is the GPU's. One thread at a time.
class Event {
 public:
  explicit Event(Device device);  ///< For streams of `device`.
  ~Event();
  Event(Event&& other) noexcept;             ///< The moved-from event may only be destroyed or assigned to.
  Event& operator=(Event&& other) noexcept;  ///< As the constructor.

  /// Marks everything enqueued on `stream` until now; `stream` is of this event's device. Replaces an earlier
  /// mark. The event must live until the mark is reached.
  void record(Stream& stream);
  /// The same for a stream that is captured into a CUDA graph: each replay marks the place. reached() stays
  /// false: record another event behind the replay to know. Nothing in the graph can wait for this one.
  void record_in_replays(Stream& stream);
  /// Whether the mark has been reached. False before the first record().
  [[nodiscard]] bool reached() const;
  /// Work enqueued on `stream` from now on starts after the last mark; at once before the first record().
  /// `stream` is of the same kind of device as this event. If the work before the mark fails, `stream` goes
  /// on all the same and does not learn of it. The host does not wait, unless the stream is the calling
  /// thread itself. Until blocked streams are past the mark, the event must live and be recorded on the same
  /// stream only.
  void block(Stream& stream);

  /// Milliseconds between two marks that have been reached, of one device.
  [[nodiscard]] static double milliseconds(Event const& from, Event const& to);
  /// CUDA's event; null on a CPU.
  [[nodiscard]] CUevent_st* handle() const noexcept;

  class DDP_HIDDEN Mark;  ///< Of one kind of device.

 private:
  std::unique_ptr<Mark> mark_;
};

}  // namespace ddp

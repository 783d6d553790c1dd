// Values that a program may drop while enqueued work still uses them.
#pragma once

#include <list>
#include <vector>

#include "ddp/data_parallel/value.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// Keeps them. The streams must be through with their work before it ends. One
/// thread at a time.
class DeferredRelease {
 public:
  /// Until what is enqueued on `stream` now is done; to the end if the stream has failed. Waits only for a
  /// stream that events cannot mark.
  void keep(std::vector<Value> values, Stream& stream);
  /// Drops those that are done.
  void drop_done() noexcept;

 private:
  struct Entry {
    explicit Entry(Device device) : done(device) {}
    Event done;
    std::vector<Value> values;  // empty: free for others
  };
  std::list<Entry> entries_;
  std::vector<Value> to_the_end_;
};

}  // namespace ddp

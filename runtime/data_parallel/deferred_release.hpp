// Keeps values alive that a program may drop while enqueued work still uses them.
#pragma once

#include <list>
#include <vector>

#include "ddp/data_parallel/value.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/stream.hpp"

namespace ddp {

/// The streams must have finished before this object is destroyed. One thread at a time.
class DeferredRelease {
 public:
  /// Keeps `values` until the work that is on `stream` now is done; as long as this object lives if the
  /// stream has failed. Waits only for a stream on which no event can be recorded.
  void keep(std::vector<Value> values, Stream& stream);
  /// Drops the values whose work is done.
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

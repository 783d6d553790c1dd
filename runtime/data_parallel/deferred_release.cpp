#include "data_parallel/deferred_release.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "data_parallel/stream_noexcept.hpp"
#include "ddp/core/log.hpp"

namespace ddp {
void DeferredRelease::keep(std::vector<Value> values, Stream& stream) {
  drop_done();
  std::erase_if(values, [](Value const& value) { return value.is_none(); });
  if (values.empty()) return;
  try {
    auto free = std::find_if(entries_.begin(), entries_.end(),
                             [](Entry const& entry) { return entry.values.empty(); });
    if (free == entries_.end()) free = entries_.emplace(entries_.end(), stream.device());
    free->done.record(stream);
    free->values = std::move(values);
  } catch (std::exception const& error) {  // no event can be had of this stream
    log(LogLevel::debug, error.what());
    if (synchronize_if_possible(stream)) return;
    std::move(values.begin(), values.end(), std::back_inserter(to_the_end_));
  }
  drop_done();
}

void DeferredRelease::drop_done() noexcept {
  for (Entry& entry : entries_) {
    try {
      if (!entry.values.empty() && entry.done.reached()) entry.values.clear();
    } catch (std::exception const& error) {  // the GPU has failed
      log(LogLevel::debug, error.what());
    }
  }
}

}  // namespace ddp

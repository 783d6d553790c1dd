#include "data_parallel/deferred_release.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "data_parallel/try_or_log.hpp"

namespace ddp {

void DeferredRelease::keep(std::vector<Value> values, Stream& stream) {
  drop_done();
  std::erase_if(values, [](Value const& value) { return value.is_none(); });
  if (values.empty()) return;
  bool const recorded = try_or_log([&] {
    auto free = std::ranges::find_if(entries_, [](Entry const& entry) { return entry.values.empty(); });
    if (free == entries_.end()) free = entries_.emplace(entries_.end(), stream.device());
    free->done.record(stream);
    free->values = std::move(values);
  });
  if (!recorded && !try_or_log([&] { stream.synchronize(); })) {
    std::move(values.begin(), values.end(), std::back_inserter(to_the_end_));
  }
  drop_done();
}

void DeferredRelease::drop_done() noexcept {
  for (Entry& entry : entries_) {
    try_or_log([&] {
      if (!entry.values.empty() && entry.done.reached()) entry.values.clear();
    });
  }
}

}  // namespace ddp

#include "device/cuda/stream/stream_watches.hpp"

#include <algorithm>
#include <exception>
#include <iterator>

namespace ddp {

void StreamWatches::add(std::shared_ptr<StreamWatch const> watch) {
  std::list<Watched> over;
  std::lock_guard const lock(mutex_);
  if (Watched* const known = find(*watch)) {
    known->through.reset();
    return;
  }
  over = take_what_is_over();
  // The newest stands first, since it knows most of the work.
  watches_.push_front({++watched_, std::move(watch), std::nullopt});
}

void StreamWatches::leave(StreamWatch const& watch) {
  std::lock_guard const lock(mutex_);
  if (Watched* const known = find(watch)) known->through = known->due().through;
}

void StreamWatches::pass_to(StreamWatches& other) {
  std::list<Watched> over;
  std::scoped_lock const lock(mutex_, other.mutex_);
  for (Watched const& mine : watches_) {
    if (mine.is_over()) continue;
    std::uint64_t const through = mine.due().through;
    Watched* const theirs = other.find(*mine.watch);
    if (theirs == nullptr) {
      if (over.empty()) over = other.take_what_is_over();
      other.watches_.push_back({++other.watched_, mine.watch, through});
    } else if (theirs->through) {
      theirs->through = std::max(*theirs->through, through);
    }
  }
}

void StreamWatches::forget() {
  std::list<Watched> over;
  std::lock_guard const lock(mutex_);
  over = take_what_is_over();
}

StreamWatches::Watched* StreamWatches::find(StreamWatch const& watch) noexcept {
  auto const known =
      std::ranges::find(watches_, &watch, [](Watched const& each) { return each.watch.get(); });
  return known == watches_.end() ? nullptr : &*known;
}

std::list<StreamWatches::Watched> StreamWatches::take_what_is_over() {
  std::list<Watched> over;
  for (auto next = watches_.begin(); next != watches_.end();) {
    auto const each = next++;
    if (each->settling == 0 && each->is_over()) over.splice(over.end(), watches_, each);
  }
  return over;
}

bool StreamWatches::forget_failed() {
  std::list<Watched> failed;
  std::lock_guard const lock(mutex_);
  for (auto next = watches_.begin(); next != watches_.end();) {
    auto const each = next++;
    try {
      each->watch->check();
    } catch (std::exception const&) {
      if (each->settling == 0) failed.splice(failed.end(), watches_, each);
    }
  }
  return !failed.empty();
}

void StreamWatches::check() {
  std::lock_guard const lock(mutex_);
  for (Watched& watched : watches_) {
    try {
      watched.watch->check();
    } catch (...) {
      watched.told = true;
      throw;
    }
  }
}

std::vector<StreamWatches::Due> StreamWatches::dues() const {
  std::lock_guard const lock(mutex_);
  std::vector<Due> all;
  for (Watched const& watched : watches_) all.push_back(watched.due());
  return all;
}

std::optional<StreamWatches::Due> StreamWatches::due(std::size_t place) const {
  std::lock_guard const lock(mutex_);
  if (place >= watches_.size()) return std::nullopt;
  return std::next(watches_.begin(), static_cast<std::ptrdiff_t>(place))->due();
}

// Without the lock, since a watch may take its time; `settling` keeps it from being forgotten meanwhile.
void StreamWatches::settle(Due due) {
  std::unique_lock lock(mutex_);
  auto const watched = std::ranges::find(watches_, due.watch, &Watched::number);
  if (watched == watches_.end()) return;
  ++watched->settling;
  lock.unlock();
  std::exception_ptr failure;
  try {
    watched->watch->settle(due.through);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  --watched->settling;
  if (!failure) return;
  watched->told = true;
  std::rethrow_exception(failure);
}

}  // namespace ddp

// The watches of a GPU's stream: which failures a wait for it throws.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

#include "device/cuda/check.hpp"
#include "device/cuda/stream_state.hpp"

namespace ddp {

void CudaStream::State::order_before(State& other) {
  {
    OnItsDevice const on(device_, handle_);
    cuda::check(cudaEventRecord(event_, handle_), "recording an event");
  }
  OnItsDevice const on(other.device_, other.handle_);
  cuda::check(cudaStreamWaitEvent(other.handle_, event_, 0), "making a stream wait for another");
  std::vector<Watched> over;
  std::scoped_lock const lock(mutex_, other.mutex_);
  for (Watched const& mine : watches_) {
    std::uint64_t const through = mine.due().through;
    Watched* const theirs = other.find(*mine.watch);
    if (theirs == nullptr) {
      if (over.empty()) over = other.forget_what_is_over();
      other.watches_.push_back({++other.watched_, mine.watch, through});
    } else if (theirs->through) {
      theirs->through = std::max(*theirs->through, through);
    }
  }
}

void CudaStream::State::watch(std::shared_ptr<StreamWatch const> watch) {
  std::vector<Watched> over;
  std::lock_guard const lock(mutex_);
  if (Watched* const known = find(*watch)) {
    known->through.reset();
    return;
  }
  over = forget_what_is_over();
  // The latest first: it knows more of the work than those before.
  watches_.insert(watches_.begin(), {++watched_, std::move(watch), std::nullopt});
}

void CudaStream::State::leave(StreamWatch const& watch) {
  std::lock_guard const lock(mutex_);
  if (Watched* const known = find(watch)) known->through = known->due().through;
}

CudaStream::State::Watched* CudaStream::State::find(StreamWatch const& watch) noexcept {
  auto const known = std::find_if(watches_.begin(), watches_.end(),
                                  [&](Watched const& watched) { return watched.watch.get() == &watch; });
  return known == watches_.end() ? nullptr : &*known;
}

std::vector<CudaStream::State::Watched> CudaStream::State::forget_what_is_over() {
  auto const over = std::stable_partition(watches_.begin(), watches_.end(), [](Watched const& watched) {
    return watched.settling != 0 || !watched.watch->is_over();
  });
  std::vector<Watched> forgotten(std::make_move_iterator(over), std::make_move_iterator(watches_.end()));
  watches_.erase(over, watches_.end());
  return forgotten;
}

void CudaStream::State::check() const {
  std::lock_guard const lock(mutex_);
  for (Watched const& watched : watches_) watched.watch->check();
}

std::vector<CudaStream::State::Due> CudaStream::State::dues() const {
  std::lock_guard const lock(mutex_);
  std::vector<Due> all;
  for (Watched const& watched : watches_) all.push_back(watched.due());
  return all;
}

std::optional<CudaStream::State::Due> CudaStream::State::due(std::size_t place) const {
  std::lock_guard const lock(mutex_);
  if (place >= watches_.size()) return std::nullopt;
  return watches_[place].due();
}

// Without the lock, since a watch may take its time; `settling` keeps the watch from being destroyed
// meanwhile.
void CudaStream::State::settle(Due due) {
  auto const asks = [&](int more) -> StreamWatch const* {
    std::lock_guard const lock(mutex_);
    for (Watched& watched : watches_) {
      if (watched.number != due.watch) continue;
      watched.settling += more;
      return watched.watch.get();
    }
    return nullptr;
  };
  StreamWatch const* const watch = asks(1);
  if (watch == nullptr) return;
  try {
    watch->settle(due.through);
  } catch (...) {
    asks(-1);
    throw;
  }
  asks(-1);
}

}  // namespace ddp

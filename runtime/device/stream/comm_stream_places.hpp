// On which part of a GPU a stream for communication runs.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

namespace ddp {

/// A collective keeps its SMs until every rank has launched it. Two of them that ranks launch in different
/// order, on two streams, need room for both: where only one fits, each rank holds what the other one's
/// needs, for ever. So each stream has SMs for a collective of its own: the first one those that are set
/// aside, each of the others as many of the rest. There kernels of the program come in between, but they come
/// to an end.
class CommStreamPlaces : public std::enable_shared_from_this<CommStreamPlaces> {
 public:
  /// `rest`: how many have room beside the one on the SMs set aside.
  explicit CommStreamPlaces(int rest) noexcept : rest_(rest) {}

  enum class Part { aside, rest };
  struct Place {
    Part part = Part::aside;
    std::shared_ptr<void const> held;  ///< until this goes
  };
  /// nullopt: all are held. Any thread.
  [[nodiscard]] std::optional<Place> take() {
    std::lock_guard const lock(mutex_);
    if (held_aside_ == 0) return hold(Part::aside, held_aside_);
    if (held_rest_ < rest_) return hold(Part::rest, held_rest_);
    return std::nullopt;
  }

 private:
  // What is held is counted down by whoever lets it go, in any thread.
  [[nodiscard]] Place hold(Part part, int& held) {
    ++held;
    return {part, std::shared_ptr<void const>(this, [places = shared_from_this(), &held](void const*) {
              std::lock_guard const lock(places->mutex_);
              --held;
            })};
  }

  std::mutex mutex_;
  int rest_;
  int held_aside_ = 0;
  int held_rest_ = 0;
};

}  // namespace ddp

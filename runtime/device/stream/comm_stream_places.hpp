// On which part of a GPU a stream for communication runs.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

namespace ddp {

/// A collective keeps its SMs until every rank has launched it. If ranks launch two of them in different
/// order, on two streams, and only one fits, each rank's collective holds the SMs that the other one's needs,
/// for ever. So each stream has SMs for a collective of its own: the first stream those set aside, each
/// further one as many of the rest. There it may have to wait for kernels of the program, but these end.
class CommStreamPlaces : public std::enable_shared_from_this<CommStreamPlaces> {
 public:
  /// `rest`: how many streams have room beside the one on the SMs set aside.
  explicit CommStreamPlaces(int rest) noexcept : rest_(rest) {}

  enum class Part { aside, rest };
  struct Place {
    Part part = Part::aside;
    std::shared_ptr<void const> held;  ///< until this goes
  };
  /// nullopt if all are held. Any thread.
  [[nodiscard]] std::optional<Place> take() {
    std::lock_guard const lock(mutex_);
    if (held_aside_ == 0) return hold(Part::aside, held_aside_);
    if (held_rest_ < rest_) return hold(Part::rest, held_rest_);
    return std::nullopt;
  }

 private:
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

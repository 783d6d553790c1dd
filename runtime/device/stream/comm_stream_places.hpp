// On which part of a GPU a stream for communication runs.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace ddp {

/// A collective keeps its SMs until every rank has launched it. If ranks launch two of them in different
/// order, on two streams, and only one fits, each rank's collective holds the SMs that the other one's needs,
/// for ever. So each stream has SMs for a collective of its own: the first stream those set aside, each
/// further one as many of the rest. There it may have to wait for kernels of the program, but these end.
class CommStreamPlaces {
 public:
  /// `rest`: how many streams have room beside the one on the SMs set aside.
  explicit CommStreamPlaces(std::size_t rest) : held_(1 + rest) {}

  enum class Part { aside, rest };
  struct Place {
    Part part = Part::aside;
    std::shared_ptr<void const> held;  ///< the place is taken while this lives
  };
  /// nullopt if all are held. Any thread.
  [[nodiscard]] std::optional<Place> take() {
    std::lock_guard const lock(mutex_);
    for (std::weak_ptr<void const>& held : held_) {
      if (!held.expired()) continue;
      Place place{&held == &held_.front() ? Part::aside : Part::rest, std::make_shared<int const>()};
      held = place.held;
      return place;
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<void const>> held_;  // the first: the SMs set aside
};

}  // namespace ddp

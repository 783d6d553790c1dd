#include "device/stream/comm_stream_places.hpp"

namespace ddp {

std::optional<CommStreamPlaces::Place> CommStreamPlaces::take() {
  std::lock_guard const lock(mutex_);
  if (held_aside_ == 0) return hold(Part::aside, held_aside_);
  if (held_rest_ < rest_) return hold(Part::rest, held_rest_);
  return std::nullopt;
}

// What is held is counted down by whoever lets it go, in any thread.
CommStreamPlaces::Place CommStreamPlaces::hold(Part part, int& held) {
  ++held;
  return {part, std::shared_ptr<void const>(this, [places = shared_from_this(), &held](void const*) {
            std::lock_guard const lock(places->mutex_);
            --held;
          })};
}

}  // namespace ddp

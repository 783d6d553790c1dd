#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

std::vector<Rank> ControlPlane::everyone() const {
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) ranks.emplace_back(r);
  return ranks;
}

void ControlPlane::barrier(std::string_view name, Deadline deadline) {
  static_cast<void>(all_gather(name, {}, everyone(), deadline));
}

}  // namespace ddp

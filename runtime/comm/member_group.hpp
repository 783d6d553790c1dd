// Ranks of a job that are to have a communicator.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

struct MemberGroup {
  std::shared_ptr<ControlPlane> control;
  std::string name;               ///< prefix of its keys, equal on every rank, of no other living group
  std::vector<Rank> world_ranks;  ///< as `control` numbers them; their places are the ranks of the group

  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks.size()); }
  /// This rank's place.
  [[nodiscard]] Rank rank() const {
    auto const found = std::ranges::find(world_ranks, control->rank());
    require(found != world_ranks.end(), [&] {
      return text("a communicator of ranks ", join(world_ranks, ", "), ": rank ", control->rank(),
                  " is none of them");
    });
    return Rank{static_cast<int>(found - world_ranks.begin())};
  }
  /// Each member's value, in the group's order. Throws as ControlPlane::all_gather().
  [[nodiscard]] std::vector<std::string> exchange(std::string_view what, std::string_view value,
                                                  Deadline deadline) const {
    return control->all_gather(text(name, "/", what), value, world_ranks, deadline);
  }
};

}  // namespace ddp

// Ranks of a job that have a communicator, or are to have one.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

/// How a rank waits for the others.
struct Waiting {
  std::chrono::milliseconds timeout{0};  ///< of an operation
  std::string timeout_setting{};         ///< what a program sets to change that, for messages
  bool may_spin = false;                 ///< this rank's core is its own (have_own_cores())
  /// Of a library that connects ranks which are all there, if it is longer: that depends on the machine, not
  /// on what a program's steps may take.
  std::chrono::milliseconds init_timeout{0};
};

/// A group, as one of its members sees it.
struct MemberGroup {
  std::shared_ptr<ControlPlane> control;  ///< null: lost ranks are not noticed
  std::string name;  ///< prefix of its keys: the same on every rank, and of no other living group
  std::vector<Rank> world_ranks;  ///< as `control` numbers them; their places are the ranks of the group
  Rank rank{};                    ///< this rank's place
  Waiting waiting{};

  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks.size()); }
  /// This rank, as `control` numbers it.
  [[nodiscard]] Rank me() const noexcept { return world_ranks[rank.index()]; }
  /// Each member's value, in the group's order. Throws as ControlPlane::all_gather().
  [[nodiscard]] std::vector<std::string> exchange(std::string_view what, std::string_view value,
                                                  Deadline deadline) const {
    return control->all_gather(text(name, "/", what), value, world_ranks, deadline);
  }
  /// The same at the group's first place, elsewhere nothing.
  [[nodiscard]] std::vector<std::string> tell_first(std::string_view what, std::string_view value,
                                                    Deadline deadline) const {
    return control->gather(text(name, "/", what), value, world_ranks, deadline);
  }
  /// The members at `places`, among them this rank, as a group of their own.
  [[nodiscard]] MemberGroup part(std::span<Rank const> places, std::string part_name = {}) const {
    auto const own = std::ranges::find(places, rank) - places.begin();
    MemberGroup some{control, std::move(part_name), {}, Rank{static_cast<int>(own)}, waiting};
    for (Rank const place : places) some.world_ranks.push_back(world_ranks[place.index()]);
    return some;
  }
};

}  // namespace ddp

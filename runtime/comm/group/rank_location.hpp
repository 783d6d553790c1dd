// Where the ranks of a group are, and what that means for them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/group/core_shares.hpp"
#include "comm/group/members.hpp"
#include "core/system/build_id.hpp"
#include "ddp/core/device.hpp"

namespace ddp {

/// What a rank tells the others about itself before they choose how to communicate.
struct RankLocation {
  std::string host;     ///< host_identity(): equal where memory can be shared
  Device device;        ///< as the rank itself counts
  std::string card;     ///< of a GPU: its bus id, "-" for a CPU
  std::string uuid;     ///< of a GPU, "-" for a CPU
  int slice = 0;        ///< which of a GPU's virtual devices
  std::string backend;  ///< what the rank insists on, "-" for nothing
  int process = 0;      ///< its number on the host
  CoreShare cores{};    ///< what it may run on
  std::string version = library_version();
  std::string build = "-";  ///< build_id()
  Rank rank{-1};            ///< of the job, for messages; -1: its place in the list is used
  friend bool operator==(RankLocation const&, RankLocation const&) = default;
};

/// This rank's location. Throws Error(not_found) for a device that is not there.
[[nodiscard]] RankLocation location_of(Device device, std::string const& backend);

/// At the group's first place the locations of all ranks, by rank; elsewhere nothing. Collective. Throws
/// CommError(timeout) naming ranks that never came.
[[nodiscard]] std::vector<RankLocation> gather_locations(MemberGroup const& group, RankLocation const& mine,
                                                         Deadline deadline);

/// What messages call the rank at this place of the list.
[[nodiscard]] Rank number_of(std::span<RankLocation const> ranks, std::size_t place);

/// Throws CommError(mismatch), the same on every rank, that names ranks and hosts, where ranks run different
/// versions of this library, where some have memory of a GPU and some of the CPU, or where they insist on
/// different backends.
void check_locations(std::span<RankLocation const> ranks);

/// "rank 1 (on node-b) runs another build … than rank 0 (on node-a)"; empty where all run the same files.
/// Builds that differ may fit each other.
[[nodiscard]] std::string different_builds(std::span<RankLocation const> ranks);

/// How many hosts these ranks are on: groups of ranks that can share memory.
[[nodiscard]] std::size_t hosts(std::span<RankLocation const> ranks);

/// For each rank whether it has a CPU of its host for itself.
[[nodiscard]] std::vector<bool> have_own_cores(std::span<RankLocation const> ranks);

}  // namespace ddp

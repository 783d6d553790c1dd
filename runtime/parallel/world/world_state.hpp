// What all copies of a World share.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/system/own_process.hpp"
#include "ddp/device/sm_partition.hpp"
#include "ddp/parallel/world.hpp"
#include "parallel/world/host_values.hpp"
#include "parallel/world/world_follower.hpp"

namespace ddp {

/// Where a rank stands in its World. Others may own a share, and see what a rebuild makes of it.
struct WorldPlace {
  Rank rank{};
  int size = 1;
};

/// What a DistributedDataParallel sends through. One that has ended leaves it to the next.
struct SpareLane {
  std::string maker;  ///< name of the object for which it was made; equal on every rank
  bool in_rank_order = false;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Stream> comm_stream;
};

struct WorldState {
  WorldState() = default;
  WorldState(WorldState const&) = delete;
  WorldState& operator=(WorldState const&) = delete;
  ~WorldState();
  [[nodiscard]] static std::shared_ptr<WorldState> make() { return {new WorldState, DeleteOwn{}}; }

  RankInfo info;
  WorldOptions options;
  CommunicatorOptions communicator_options;  ///< without backend and comm_sms, of `device` only
  StartTimes start_times;
  std::shared_ptr<WorldState> parent;  ///< of a sub-group
  int subgroups = 0;                   ///< that live
  std::string name;                    ///< prefix of control-plane keys, unique among living groups
  int membership = 0;                  ///< Membership::number
  bool newcomer = false;               ///< it stands for a lost rank, and has not been taken in
  bool going_back = false;             ///< what it has is worth nothing until Replicated::go_back() is over
  std::vector<Rank> members;           ///< ranks of the whole job
  std::shared_ptr<WorldPlace> const place = std::make_shared<WorldPlace>();
  Device device;
  std::shared_ptr<ControlPlane> control;
  std::shared_ptr<ChromeTrace> trace;                              ///< null: not traced
  std::shared_ptr<SmPartition const> partition;                    ///< null: WorldOptions::comm_sms is 0
  std::shared_ptr<Stream> stream = make_compute_stream(Device{});  ///< of a sub-group: the whole's
  std::unique_ptr<Communicator> communicator;
  std::vector<SpareLane> spares;  ///< that nobody uses now
  bool had_lanes = false;         ///< of this membership
  std::vector<WorldFollower*> followers;
  std::vector<std::weak_ptr<HostValues>> host_values;  ///< of every Replicated
  int next_object = 0;
  std::optional<CommError> rebuilt_for;  ///< the error for which rebuild() made this membership
  int exceptions_at_start = std::uncaught_exceptions();

  void abort_spares(std::string_view reason) noexcept {
    for (SpareLane const& each : spares) each.communicator->abort(reason);
  }
  [[nodiscard]] SmPartition const* partition_of(Device asked) const noexcept {
    return partition && partition->device() == asked ? partition.get() : nullptr;
  }
  void take_members(std::vector<Rank> ranks, Rank rank) {
    place->rank = rank;
    place->size = static_cast<int>(ranks.size());
    members = std::move(ranks);
  }
  template <class Use>
  void each_host_values(Use const& use) const {
    for (auto const& each : host_values) {
      if (auto const values = each.lock()) std::invoke(use, *values);
    }
  }
  /// The communicator of `ranks` of the job, with keys that begin with `prefix`. Collective over them.
  [[nodiscard]] std::unique_ptr<Communicator> connect(std::string const& prefix,
                                                      std::vector<Rank> const& ranks) const;
};

/// For what follows a World.
struct WorldAccess {
  [[nodiscard]] static WorldState& state(World const& world) noexcept { return *world.state_; }
};

}  // namespace ddp

// What all copies of a World share.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/device/sm_partition.hpp"
#include "ddp/parallel/world.hpp"

namespace ddp {

struct World::State {
  State() = default;
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State();

  RankInfo info;
  WorldOptions options;
  StartTimes start_times;
  std::shared_ptr<State> parent;  ///< of a sub-group
  std::string name;               ///< prefix of control-plane keys, unique among living groups
  std::vector<Rank> members;      ///< ranks of the whole job
  Rank rank;                      ///< in this group
  Device device;
  std::shared_ptr<ControlPlane> control;
  std::shared_ptr<ChromeTrace> trace;                              ///< null: not traced
  std::shared_ptr<SmPartition const> partition;                    ///< null: WorldOptions::comm_sms is 0
  std::shared_ptr<Stream> stream = make_compute_stream(Device{});  ///< of a sub-group: the whole's
  std::unique_ptr<Communicator> communicator;
  int next_object = 0;
  int exceptions_at_start = std::uncaught_exceptions();
};

}  // namespace ddp

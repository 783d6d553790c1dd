// A step that was recorded, and what its replays need to know of it (R24).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/device/recorded_graph.hpp"
#include "reducer/statistics/step_times.hpp"

namespace ddp {

struct RecordedStep {
  /// What the step does with a parameter.
  enum class Mark : std::uint8_t {
    none,
    here,       ///< its gradient becomes ready in the step
    elsewhere,  ///< under no_sync(), in memory of the program's own
    before,     ///< under no_sync() before the step, which sends it
  };

  std::shared_ptr<RecordedGraph> graph;
  bool sends = false;       ///< false: all of it runs under no_sync()
  bool weighted = false;    ///< set_weight() came before it
  std::vector<Mark> marks;  ///< by parameter
  StepTimes::Recorded times;
};

}  // namespace ddp

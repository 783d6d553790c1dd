// What the contracts of control planes run over.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "support/ranks/control_jobs.hpp"

namespace ddp::testing {

inline Deadline soon() { return Deadline::after(std::chrono::milliseconds(100)); }
inline Deadline patient() { return Deadline::after(std::chrono::seconds(60)); }

enum class ControlPlaneKind { in_process, launcher };

/// Each test runs over every kind that a whole job in one process can have.
class EveryControlPlane : public ::testing::TestWithParam<ControlPlaneKind> {
 public:
  static auto kinds() { return ::testing::Values(ControlPlaneKind::in_process, ControlPlaneKind::launcher); }
  static std::string name_of(::testing::TestParamInfo<ControlPlaneKind> const& kind) {
    return kind.param == ControlPlaneKind::in_process ? "InProcess" : "Launcher";
  }

 protected:
  static std::unique_ptr<ControlJob> job(int size, int min_ranks = 0) {
    if (GetParam() == ControlPlaneKind::in_process)
      return std::make_unique<InProcessControlJob>(size, min_ranks);
    return std::make_unique<LaunchedControlJob>(size, min_ranks);
  }
};

}  // namespace ddp::testing

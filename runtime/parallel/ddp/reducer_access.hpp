// The reducer of a DistributedDataParallel, for the runtime and its tests.
#pragma once

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "reducer/reducer.hpp"

namespace ddp {

struct ReducerAccess {
  [[nodiscard]] static Reducer& of(DistributedDataParallel& ddp) noexcept { return *ddp.reducer_; }
};

[[nodiscard]] inline Reducer& reducer_of(DistributedDataParallel& ddp) noexcept {
  return ReducerAccess::of(ddp);
}

}  // namespace ddp

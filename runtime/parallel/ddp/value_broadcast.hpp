// Every rank begins with rank 0's values (R9).
#pragma once

#include <span>

#include "ddp/reducer/parameter.hpp"
#include "reducer/lane.hpp"

namespace ddp {

/// Sends rank 0's values of those parameters and buffers that lie on the lane's device to every rank, in few
/// messages. Collective; the lane's compute stream goes on behind it.
void broadcast_values(ReducerLane const& lane, std::span<Parameter const> parameters,
                      std::span<NamedTensor const> buffers);

}  // namespace ddp

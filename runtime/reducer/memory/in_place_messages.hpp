// Which gradients lie side by side where the program keeps them, and can be sent as one message.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddp/reducer/bucket_plan.hpp"
#include "ddp/reducer/parameter.hpp"

namespace ddp {

/// Gradients of a bucket that are sent as one message, where the program keeps them.
struct InPlaceMessage {
  TensorView memory;
  std::vector<BucketSlice const*> slices;
};

/// One message for each slice, in the plan's order. With `merge`, neighbours in memory share one, in the
/// order of addresses.
[[nodiscard]] std::vector<InPlaceMessage> in_place_messages(Bucket const& bucket,
                                                            std::span<Parameter const> parameters,
                                                            bool merge);

/// Which gradients each message of `plan` would hold, and in which order, given where in_place gradients lie
/// on this rank. Ranks may join neighbours only if this is equal on all.
[[nodiscard]] std::string message_layout(BucketPlan const& plan, std::span<Parameter const> parameters);

}  // namespace ddp

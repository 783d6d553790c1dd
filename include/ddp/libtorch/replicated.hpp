// What World::rebuild() gives to other ranks, of PyTorch's: the state of optimizers, and tensors.
#pragma once

#include "ddp/core/export.hpp"
#include "ddp/parallel/replicated.hpp"
#include "ddp/parallel/world.hpp"

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace DDP_EXPORT ddp {
namespace libtorch {

/// The state of `optimizer`, for ddp::Replicated; of those that Checkpoint knows, with the same errors. Gives
/// parameters without a state the one with which the optimizer would begin, so that it has the same form on
/// every rank at any time. Learning rates are no part of it: a program sets them by its position. The
/// optimizer must outlive the Replicated, and must not be loaded meanwhile.
///
///     ddp::Replicated state(world, {ddp::libtorch::replicated(world, optimizer), &position});
[[nodiscard]] Replicated::Part replicated(World const& world, torch::optim::Optimizer& optimizer);
/// A tensor that keeps its memory, without gaps.
[[nodiscard]] Replicated::Part replicated(World const& world, at::Tensor const& tensor);

}  // namespace libtorch
}  // namespace ddp

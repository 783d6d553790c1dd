// A CUDA graph that PyTorch records: its allocator and its generators must know of it.
#pragma once

#include <memory>

#include "ddp/device/recorded_graph.hpp"

namespace ddp::libtorch {

/// Nothing is recorded yet. begin(), end() and abandon() are called with the recorded stream as PyTorch's
/// current one. Throws Error(unsupported) in a build without CUDA.
[[nodiscard]] std::shared_ptr<RecordedGraph> make_torch_graph();

}  // namespace ddp::libtorch

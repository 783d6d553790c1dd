// Whether memory lies where its view says, as far as CUDA knows.
#pragma once

#include <optional>
#include <string>

#include "ddp/core/tensor.hpp"

namespace ddp {

/// What CUDA knows of an address.
struct MemoryPlace {
  enum class Kind {
    plain,    ///< nothing: of malloc, the stack, a mapped file
    pinned,   ///< of the host, known to CUDA
    managed,  ///< moves between the host and GPUs
    gpu,      ///< of one GPU
  };
  Kind kind = Kind::plain;
  int visible = 0;  ///< of a GPU's memory: CUDA's number of the GPU
};

/// "f32[3] on cpu:0, expected in host memory, but …" with what to do, if a program that trusts `view` would
/// crash; empty if it would not, or if nothing is known (nullopt: CUDA is not in use). `visible`: CUDA's
/// number of view.device, if that is a GPU.
[[nodiscard]] std::string why_memory_is_elsewhere(TensorView const& view, std::optional<MemoryPlace> found,
                                                  int visible);

/// The same with CUDA's answer, which takes some hundred nanoseconds. It starts nothing of CUDA.
[[nodiscard]] std::string why_memory_is_elsewhere(TensorView const& view);

}  // namespace ddp

// Whether anybody in this process has started CUDA.
#pragma once

namespace ddp {

/// Whether the driver has been initialised (cuInit) in this process, by whomever. Asks the driver's library
/// only where it is loaded already, and starts nothing.
[[nodiscard]] bool cuda_was_used() noexcept;

}  // namespace ddp

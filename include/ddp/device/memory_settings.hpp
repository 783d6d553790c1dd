// How much memory of a device this process may take, and when it takes it.
#pragma once

#include <optional>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

// Each of these must come before the first memory of that device: before World::init() and before the first
// tensor. A call that comes later, or contradicts an earlier one, throws Error(invalid_state), which says why
// and what to do, and changes nothing. Any thread.

/// On, the default: pools take memory from the driver on demand. Off: each GPU's pool takes all that it may
/// have at its first use: up to its limit; without a limit, all free memory but a reserve for CUDA's
/// libraries, which allocate memory themselves (512 MiB or a twentieth of the card, whichever is larger).
/// CPUs have no pool and are not affected.
void set_memory_growth(bool grow);
/// The same for one GPU, whatever is set for all. Throws Error(unsupported) for a CPU.
void set_memory_growth(Device device, bool grow);

/// This process's tensors on `device` take at most `limit` together; beyond it, allocations throw
/// Error(out_of_memory) even if the device has room. Throws Error(invalid_argument) for 0 and for more than
/// there is, Error(invalid_state) for a virtual device that was made with a limit.
void set_memory_limit(Device device, Bytes limit);

/// The same as a fraction, above 0 and at most 1, of all memory that the device has, or for a CPU this
/// machine or container.
void set_memory_fraction(Device device, double fraction);

/// The limit that holds for `device`, wherever it comes from; nullopt if there is none.
[[nodiscard]] std::optional<Bytes> memory_limit(Device device);

}  // namespace ddp

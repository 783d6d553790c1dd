// How much memory of a device this process may take, and when it takes it.
#pragma once

#include <optional>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"

namespace DDP_EXPORT ddp {

// Each of these must come before the first memory of that device: before World::init() and before the first
// tensor. Later, and where two of them contradict each other, Error(invalid_state) says why and what to do,
// and nothing is changed. Any thread.

/// On, the default: pools take memory from the driver when it is asked for. Off: each GPU's pool takes all it
/// may have when it is first used: its limit, or without one what is free but for a reserve (the larger of
/// 512 MiB and a twentieth of the card) for CUDA's libraries, which have memory of their own. CPUs have no
/// pool and are not concerned.
void set_memory_growth(bool grow);
/// The same for one GPU, whatever is said of all. Throws Error(unsupported) for a CPU.
void set_memory_growth(Device device, bool grow);

/// This process's tensors on `device` take at most `limit` together; more is Error(out_of_memory), though the
/// device has room. Throws Error(invalid_argument) for 0 and for more than there is, Error(invalid_state) for
/// a virtual device that was made with a limit.
void set_memory_limit(Device device, Bytes limit);

/// The same as a part of all memory that the device, or for a CPU this machine or container, has: above 0, at
/// most 1.
void set_memory_fraction(Device device, double fraction);

/// The limit that holds for `device`, wherever it comes from; nullopt if there is none.
[[nodiscard]] std::optional<Bytes> memory_limit(Device device);

}  // namespace ddp

// Several modules at once, each in a thread of its own.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/data_parallel/module.hpp"

namespace DDP_EXPORT ddp {

/// forward() of each replica on its input, one thread each with the replica's device current (replica 0 runs
/// in the calling thread). Returns when all threads have returned; on GPUs outputs become ready in the order
/// of each replica's stream. If replicas fail, the error of the lowest one is thrown when all have ended:
/// "replica 2 on cuda:2: " and the original message. Throws Error(invalid_argument) if there are not as many
/// inputs as replicas, or if a replica is not on the device that `devices` says.
[[nodiscard]] std::vector<Value> parallel_apply(std::span<std::shared_ptr<Module> const> replicas,
                                                std::span<Value const> inputs,
                                                std::span<Device const> devices);

}  // namespace ddp

// MPI's own all-reduce, to compare with.
#pragma once

#include <memory>

#include "ddp/parallel/world.hpp"
#include "gpu.hpp"

namespace ddp::bench {

/// MPI_Allreduce on a communicator of its own, where mpirun or srun started CPU ranks; null elsewhere and in
/// a build without MPI. Collective.
[[nodiscard]] std::unique_ptr<PlainAllReduce> make_mpi_all_reduce(World const& world);

}  // namespace ddp::bench

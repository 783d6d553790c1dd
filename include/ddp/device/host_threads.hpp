// How many threads of the CPU a rank computes with.
#pragma once

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

/// The number of threads that one operation on this rank's CPU should use: the argument of
/// set_host_threads(); otherwise the first number of OMP_NUM_THREADS, which ddp-launch sets to allowed CPUs ÷
/// ranks of this host if it is unset; otherwise allowed_cpus(). At least 1. TensorFlow calls this intra-op
/// parallelism; operations run side by side only as far as a program has several streams
/// (make_comm_stream()). Any thread.
[[nodiscard]] int host_threads();

/// Sets it, for this process. If an OpenMP runtime is loaded, it is told too (omp_set_num_threads), for
/// parallel regions that the calling thread begins; other libraries read host_threads() or have functions of
/// their own. Throws Error(invalid_argument) below 1. Any thread.
void set_host_threads(int threads);

/// The CPUs that this process may run on (sched_getaffinity).
[[nodiscard]] int allowed_cpus();

}  // namespace ddp

// Preloaded into ranks: MPI goes wrong on rank 1 only, as FAULTY_MPI says: it has no threads, or it stops.
#include <mpi.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  int const result = PMPI_Init_thread(argc, argv, required, provided);
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char const* const fault = std::getenv("FAULTY_MPI");
  if (rank != 1 || fault == nullptr) return result;
  if (std::string_view(fault) == "threads") *provided = MPI_THREAD_SERIALIZED;
  if (std::string_view(fault) == "stops") std::raise(SIGSTOP);
  return result;
}

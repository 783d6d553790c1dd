// Preloaded into ranks: MPI goes wrong on rank 1 only, as FAULTY_MPI says: it has no threads, or it stops. Or
// on every rank: where no message is there, it says that a rank has failed, as Open MPI 5 does with its fault
// tolerance.
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

extern "C" int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message,
                           MPI_Status* status) {
  int const result = PMPI_Improbe(source, tag, comm, flag, message, status);
  char const* const fault = std::getenv("FAULTY_MPI");
  if (*flag != 0 || fault == nullptr || std::string_view(fault) != "failed") return result;
  static int const failed = [] {
    int code = 0;
    PMPI_Add_error_class(&code);
    PMPI_Add_error_string(code, "MPI_ERR_PROC_FAILED: Process Failure");
    return code;
  }();
  return failed;
}

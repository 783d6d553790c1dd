#include "bootstrap/mpi/control.hpp"

#include <cstdlib>
#include <exception>
#include <utility>

#include "bootstrap/failure_json.hpp"
#include "bootstrap/mpi/mpi.hpp"
#include "bootstrap/server/rendezvous.hpp"
#include "core/hash.hpp"
#include "core/system/host_identity.hpp"
#include "ddp/bootstrap/mpi.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// What to do where a process manager and the MPI library do not know each other.
std::string remedy(RankInfo const& info) {
  switch (info.source) {
    case RankSource::slurm:
      return "srun needs a PMI that this MPI speaks: try srun --mpi=pmix (srun --mpi=list shows what there "
             "is), "
             "or start with mpirun inside the allocation";
    case RankSource::pmi:
      return "the process manager belongs to another MPI (MPICH, Intel MPI): start with the mpirun of the "
             "library that the program links (ldd PROGRAM | grep libmpi), or srun with --mpi=pmix";
    default:
      return "mpirun belongs to another MPI, or to another version: start with the mpirun of the library "
             "that "
             "the program links (ldd PROGRAM | grep libmpi)";
  }
}

// Without this, N processes that each believe they are alone would silently train N models.
void check_place(RankInfo const& info, Rank rank, int size) {
  bool const size_is_known = info.size > 0;
  if ((!size_is_known || info.size == size) && info.rank == rank) return;
  std::string const message = text(to_string(info.source), " says that this process is rank ", info.rank,
                                   size_is_known ? text(" of ", info.size) : std::string(), ", but MPI (",
                                   mpi::library(), ") says rank ", rank, " of ", size, "; ", remedy(info));
  if (size == 1) mpi::end_now();
  throw Error(ErrorCode::unsupported, message);
}

[[noreturn]] void end_in_mpi_init(RankInfo const& info, Deadline deadline) {
  std::string const message =
      text("MPI_Init did not return within ", seconds(deadline.allowed()), " s on rank ", info.rank,
           ": it waits for every rank of the job, and MPI does not tell which are missing. Does every rank "
           "make its World? DDP_INIT_TIMEOUT says how long to wait. A call of MPI cannot be interrupted, so "
           "this process ends");
  write_error_file(info.error_file, info.rank, {.code = ErrorCode::timeout, .detail = message});
  log(LogLevel::error, message);
  std::_Exit(EXIT_FAILURE);
}

// If Open MPI finds no process manager that it knows, MPI_Init ends the process. There is no way to ask
// beforehand.
void warn_of_missing_pmix(RankInfo const& info) {
  bool const by_srun = info.source == RankSource::slurm || info.source == RankSource::pmi;
  if (!by_srun || info.rank != 0 || std::getenv("PMIX_NAMESPACE") != nullptr) return;
  if (!mpi::library().starts_with("Open MPI")) return;
  log(LogLevel::warning, text(to_string(info.source), " started these ", info.size,
                              " ranks without PMIx; if MPI_Init ends them now: ", remedy(info)));
}

}  // namespace

void start_mpi(RankInfo const& info, Deadline deadline) {
  warn_of_missing_pmix(info);
  mpi::start(deadline, [info, deadline] { end_in_mpi_init(info, deadline); });
  // A rank that is refused here must not wait for others in MPI_Finalize. Alone, it waits for nobody.
  mpi::stay();
  int const size = mpi::size_of(MPI_COMM_WORLD);
  try {
    check_place(info, mpi::rank_in(MPI_COMM_WORLD), size);
  } catch (...) {
    if (size == 1) mpi::go();
    throw;
  }
}

void leave_mpi() { mpi::go(); }

bool is_mpi_built() noexcept { return true; }

namespace {

// MPI tells the ranks of `comm` where the server of its rank 0 is.
std::shared_ptr<ControlPlane> meet(MPI_Comm comm, RankInfo const& mine, Deadline deadline) {
  mpi::Everyone const everyone(comm, deadline);
  Invitation invitation;
  HostedControl::Start start{.is_mpi = true, .mpi_comm = everyone.comm(), .left = &mpi::go};
  bool const of_one_host = everyone.have_equal(StableHash().add(host_identity()).value());
  std::exception_ptr problem;
  try {
    if (mine.rank == Rank{0}) start.server = start_server(mine, of_one_host, invitation);
  } catch (std::exception const& error) {  // the others must not wait for it
    problem = std::current_exception();
    invitation.problem = error.what();
  }
  invitation = Invitation::parse(everyone.broadcast(invitation.text()));
  if (problem) std::rethrow_exception(problem);
  return accept_invitation(mine, invitation, std::move(start), deadline);
}

}  // namespace

std::shared_ptr<ControlPlane> connect_mpi_control(RankInfo const& info, Deadline deadline) {
  start_mpi(info, deadline);
  RankInfo mine = info;
  mine.size = mpi::size_of(MPI_COMM_WORLD);
  try {
    return meet(MPI_COMM_WORLD, mine, deadline);
  } catch (...) {
    if (mine.size == 1) mpi::go();
    throw;
  }
}

std::shared_ptr<ControlPlane> connect_control_plane(MPI_Comm comm, Deadline deadline) {
  mpi::check_own(comm);
  RankInfo mine;
  mine.source = RankSource::program;
  mine.rank = mpi::rank_in(comm);
  mine.size = mpi::size_of(comm);
  mine.local_known = false;
  if (mine.size == 1) return connect_control_plane(mine, deadline);  // it needs nobody
  mpi::stay();                                                       // left by go()
  return meet(comm, mine, deadline);
}

}  // namespace ddp

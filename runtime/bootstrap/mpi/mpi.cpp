#include "bootstrap/mpi/mpi.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <utility>

#include "bootstrap/bounded_call.hpp"
#include "core/pausing_deadline.hpp"
#include "core/system/own_process.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp::mpi {
namespace {

using std::chrono::milliseconds;

// MPI of this process: there is one, and it starts and ends once.
struct Process {
  OwnProcess maker;
  std::mutex mutex;
  bool ours = false;
  std::atomic<bool> exiting{false};
  std::atomic<int> stays{0};
};

// Never destroyed: it is used while the program's globals are torn down.
Process& process() {
  static auto* const the_one = new Process;
  return *the_one;
}

// Later, if a World that is a global object has not left yet.
void end_at_exit() {
  if (!process().maker.is_this()) return;
  process().exiting = true;
  if (process().stays == 0) end_now();
}

void require_threads(int level) {
  if (level == MPI_THREAD_MULTIPLE) return;
  char const* const name = level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                           : level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                          : "MPI_THREAD_SINGLE";
  throw Error(ErrorCode::unsupported,
              text("gradients are sent by a thread of their own, which needs MPI_THREAD_MULTIPLE; this MPI (",
                   library(), ") runs with ", name,
                   ". Where the program initialises MPI itself, call MPI_Init_thread with "
                   "MPI_THREAD_MULTIPLE instead of MPI_Init; otherwise use a library built with threads"));
}

void initialize(Deadline deadline, std::function<void()> const& overdue) {
  int level = MPI_THREAD_SINGLE;
  {
    CallWatch const watch(deadline, overdue);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  }
  process().ours = true;
  std::atexit(&end_at_exit);
  // This rank is refused, other ranks perhaps not: see connect_mpi_control().
  if (level != MPI_THREAD_MULTIPLE && size_of(MPI_COMM_WORLD) > 1) ++process().stays;
  require_threads(level);
}

// Whether MPI has been initialised. Throws where it has ended, or serves too few threads.
bool runs() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    throw Error(ErrorCode::unsupported,
                "MPI was finalised already in this process, and cannot start again; make the World before "
                "MPI_Finalize, and let it go before that");
  }
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) return false;
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  require_threads(level);
  return true;
}

std::string words_of(int result) {
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, words, &length);
  return words;
}

}  // namespace

void check(int result, char const* doing) {
  if (result != MPI_SUCCESS) throw CommError(ErrorCode::io, text(doing, ": ", words_of(result)));
}

// By its words, since Open MPI 4 has no such error.
bool got_through(int result, char const* doing) {
  bool const is_lost = result != MPI_SUCCESS && words_of(result).starts_with("MPI_ERR_PROC_FAILED");
  if (!is_lost) check(result, doing);
  return !is_lost;
}

void start(Deadline deadline, std::function<void()> const& overdue) {
  std::lock_guard const lock(process().mutex);
  if (!runs()) initialize(deadline, overdue);
}

void check_own(MPI_Comm comm) {
  if (!runs()) {
    throw Error(ErrorCode::unsupported,
                "a World over a communicator of MPI: MPI does not run in this process; make the World after "
                "MPI_Init_thread");
  }
  int is_inter = 0;
  if (comm != MPI_COMM_NULL) check(MPI_Comm_test_inter(comm, &is_inter), "MPI_Comm_test_inter");
  require(comm != MPI_COMM_NULL && is_inter == 0,
          text("a World over a communicator of MPI: expected the communicator of its ranks, found ",
               is_inter != 0 ? "an intercommunicator; give the communicator of one side"
                             : "MPI_COMM_NULL; only ranks that are in the communicator make the World"));
}

Rank rank_in(MPI_Comm comm) {
  int rank = 0;
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return Rank{rank};
}

int size_of(MPI_Comm comm) {
  int size = 0;
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  return size;
}

std::string library() {
  char words[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(words, &length);
  std::string const all(words, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

void end_now() noexcept {
  std::lock_guard const lock(process().mutex);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (process().ours && finalized == 0) MPI_Finalize();
}

void stay() noexcept { ++process().stays; }
void go() noexcept {
  if (--process().stays == 0 && process().exiting) end_now();
}

namespace {

// What a call that is given up may still write to: never freed.
template <class T>
T& kept() {
  return *new T();
}

// A collective call that was started: every rank comes to it, or none goes on.
void wait_for(MPI_Request request, MPI_Comm comm, char const* doing, Deadline deadline) {
  PausingDeadline timeout(deadline);
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), doing);
    if (done != 0) return;
    if (timeout.ended()) {
      throw CommError(ErrorCode::timeout,
                      text("rank ", rank_in(comm), " waited ", seconds(deadline.allowed()),
                           " s for every one of ", size_of(comm),
                           " MPI ranks to join; MPI does not tell which are missing. Does every rank make "
                           "its World? DDP_INIT_TIMEOUT says how long to wait"));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

MPI_Comm const& duplicate_of(MPI_Comm comm, Deadline deadline) {
  auto& duplicate = kept<MPI_Comm>();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(comm, &duplicate, &request), "MPI_Comm_idup");
  wait_for(request, comm, "MPI_Comm_idup", deadline);
  check(MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return duplicate;
}

}  // namespace

Everyone::Everyone(MPI_Comm comm, Deadline deadline)
    : deadline_(deadline), comm_(&duplicate_of(comm, deadline)) {}

bool Everyone::have_equal(std::uint64_t number) const {
  auto& least = kept<std::array<std::uint64_t, 4>>();  // of the number, and of its complement
  least = {number, ~number};
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallreduce(least.data(), least.data() + 2, 2, MPI_UINT64_T, MPI_MIN, *comm_, &request),
        "MPI_Iallreduce");
  wait_for(request, *comm_, "MPI_Iallreduce", deadline_);
  return least[2] == ~least[3];
}

std::string Everyone::broadcast(std::string bytes) const {
  auto& length = kept<int>();
  length = static_cast<int>(bytes.size());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibcast(&length, 1, MPI_INT, 0, *comm_, &request), "MPI_Ibcast");
  wait_for(request, *comm_, "MPI_Ibcast", deadline_);
  auto& buffer = kept<std::string>();
  buffer = std::move(bytes);
  buffer.resize(static_cast<std::size_t>(length));
  check(MPI_Ibcast(buffer.data(), length, MPI_CHAR, 0, *comm_, &request), "MPI_Ibcast");
  wait_for(request, *comm_, "MPI_Ibcast", deadline_);
  return buffer;
}

}  // namespace ddp::mpi

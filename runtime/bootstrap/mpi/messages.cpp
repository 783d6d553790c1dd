#include "bootstrap/mpi/messages.hpp"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/bounded_call.hpp"
#include "core/pausing_deadline.hpp"
#include "core/system/own_process.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp::mpi {
namespace {

using std::chrono::milliseconds;

constexpr Deadline::Duration kRestOfAMessage{60'000};

// MPI of this process: there is one, and it starts and ends once.
struct Process {
  OwnProcess maker;
  std::mutex mutex;
  bool ours = false;
  std::atomic<int> stays{0};
  std::vector<std::function<void(bool)>> before_end;
};

// Never destroyed: it is used while the program's globals are torn down.
Process& process() {
  static auto* const the_one = new Process;
  return *the_one;
}

void end_at_exit() {
  if (!process().maker.is_this()) return;
  bool const orderly = process().stays == 0;
  std::vector<std::function<void(bool)>> last;
  {
    std::lock_guard const lock(process().mutex);
    last.swap(process().before_end);
  }
  for (auto const& call : last) call(orderly);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (orderly && finalized == 0) MPI_Finalize();
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
  // This rank is refused, while other ranks may not be: see MpiControl::join().
  if (level != MPI_THREAD_MULTIPLE && world_size() > 1) ++process().stays;
  require_threads(level);
}

}  // namespace

void check(int result, char const* doing) {
  if (result == MPI_SUCCESS) return;
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, words, &length);
  throw CommError(ErrorCode::io, text(doing, ": ", words));
}

void start(Deadline deadline, std::function<void()> const& overdue) {
  std::lock_guard const lock(process().mutex);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    throw Error(ErrorCode::unsupported,
                "MPI was finalised already in this process, and cannot start again; make the World before "
                "MPI_Finalize, and let it go before that");
  }
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0) return initialize(deadline, overdue);
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  require_threads(level);
}

Rank world_rank() {
  int rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  return Rank{rank};
}

int world_size() {
  int size = 0;
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

std::string library() {
  char words[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(words, &length);
  std::string const all(words, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

bool is_ours() {
  std::lock_guard const lock(process().mutex);
  return process().ours;
}

void end_now() noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (is_ours() && finalized == 0) MPI_Finalize();
}

void before_end(std::function<void(bool)> last) {
  std::lock_guard const lock(process().mutex);
  process().before_end.push_back(std::move(last));
}

Stay::Stay() { ++process().stays; }
Stay::~Stay() { --process().stays; }

struct Messages::Handle {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request duplicated = MPI_REQUEST_NULL;
};

struct Messages::Outgoing {
  std::string bytes;
  MPI_Request request = MPI_REQUEST_NULL;
  bool awaited = true;
};

Messages::Messages(Deadline deadline)
    : handle_(new Handle), outgoing_(std::make_unique<std::list<Outgoing>>()) {
  check(MPI_Comm_idup(MPI_COMM_WORLD, &handle_->comm, &handle_->duplicated), "MPI_Comm_idup");
  PausingDeadline timeout(deadline);
  for (int done = 0;;) {
    check(MPI_Test(&handle_->duplicated, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    if (done != 0) break;
    if (timeout.ended()) {
      throw CommError(ErrorCode::timeout,
                      text("rank ", world_rank(), " waited ", seconds(deadline.allowed()),
                           " s for every one of ", world_size(),
                           " MPI ranks to join; MPI does not tell which are missing. Does every rank make "
                           "its World? DDP_INIT_TIMEOUT says how long to wait"));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  check(MPI_Comm_set_errhandler(handle_->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Messages::~Messages() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  drop_sent();
  if (!outgoing_->empty()) static_cast<void>(outgoing_.release());  // MPI may still read these: they stay
}

void Messages::send(Rank to, int tag, std::string bytes, bool awaited) {
  require(bytes.size() <= INT_MAX,
          [&] { return text("a message of ", bytes.size(), " bytes is more than MPI takes"); });
  std::lock_guard const lock(mutex_);
  drop_sent();
  Outgoing& out = outgoing_->emplace_back();
  out.bytes = std::move(bytes);
  out.awaited = awaited;
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): drop_sent() waits for it, with MPI_Test
  check(MPI_Isend(out.bytes.data(), static_cast<int>(out.bytes.size()), MPI_BYTE, to.value(), tag,
                  handle_->comm, &out.request),
        "MPI_Isend");
}

std::optional<Messages::Letter> Messages::receive(std::optional<Rank> from, int tag) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  int const source = from ? from->value() : MPI_ANY_SOURCE;
  check(MPI_Improbe(source, tag, handle_->comm, &found, &message, &status), "MPI_Improbe");
  if (found == 0) return std::nullopt;
  int count = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
  auto letter = std::make_unique<Letter>(
      Letter{Rank{status.MPI_SOURCE}, std::string(static_cast<std::size_t>(count), '\0')});
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Imrecv(letter->bytes.data(), count, MPI_BYTE, &message, &request), "MPI_Imrecv");
  PausingDeadline timeout(kRestOfAMessage);
  for (int done = 0;;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Imrecv");
    if (done != 0) return std::move(*letter);
    if (timeout.ended()) {
      Rank const sender = letter->from;
      static_cast<void>(letter.release());  // MPI may still write there
      throw CommError(ErrorCode::timeout,
                      text("a message of ", count, " bytes from rank ", sender,
                           " did not come to its end within ", seconds(kRestOfAMessage), " s"));
    }
    std::this_thread::yield();
  }
}

bool Messages::all_sent() {
  std::lock_guard const lock(mutex_);
  drop_sent();
  return std::ranges::none_of(*outgoing_, &Outgoing::awaited);
}

// The mutex is held, or nobody else is there.
void Messages::drop_sent() {
  for (auto out = outgoing_->begin(); out != outgoing_->end();) {
    int done = 0;
    bool const known = MPI_Test(&out->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS;
    out = known && done != 0 ? outgoing_->erase(out) : std::next(out);
  }
}

}  // namespace ddp::mpi

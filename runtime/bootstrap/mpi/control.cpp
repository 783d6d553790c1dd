#include "bootstrap/mpi/control.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "bootstrap/describe_hosts.hpp"
#include "bootstrap/error_file.hpp"
#include "bootstrap/mpi/backoff.hpp"
#include "core/pausing_deadline.hpp"
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "core/system/own_process.hpp"
#include "core/system/pidfd.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Rank kServer{0};
constexpr int kMostLifelines = 512;

Failure server_is_silent() {
  return {.code = ErrorCode::timeout,
          .manner = Failure::Manner::silent,
          .ranks = {kServer},
          .detail = "rank 0, which serves the control plane, does not answer: is it stopped?"};
}

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

bool has_ended(FileDescriptor const& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

std::shared_ptr<ControlPlane> connect_mpi_control(RankInfo const& info, Deadline deadline) {
  return MpiControl::join(info, deadline);
}

bool is_mpi(ControlPlane const& control) noexcept {
  return dynamic_cast<MpiControl const*>(&control) != nullptr;
}

std::string hosts_of(ControlPlane const& control, std::span<Rank const> ranks) {
  auto const* const mpi = dynamic_cast<MpiControl const*>(&control);
  if (mpi == nullptr) return {};
  std::vector<std::size_t> places;
  for (Rank const rank : ranks) places.push_back(rank.index());
  return describe_hosts(mpi->everyone(), places, mpi->host_names());
}

void note_stopped(Failure& failure, ControlPlane const& control, std::span<Rank const> ranks) {
  auto const* const mpi = dynamic_cast<MpiControl const*>(&control);
  if (mpi == nullptr) return;
  for (Rank const rank : ranks) note_stopped(failure, rank, mpi->process_of(rank));
}

pid_t MpiControl::process_of(Rank rank) const noexcept {
  auto const neighbour = std::ranges::find(neighbours_, rank, &Neighbour::rank);
  return neighbour == neighbours_.end() ? 0 : neighbour->pid;
}

std::shared_ptr<MpiControl> MpiControl::join(RankInfo const& info, Deadline deadline) {
  warn_of_missing_pmix(info);
  mpi::start(deadline, [info, deadline] { end_in_mpi_init(info, deadline); });
  // A rank that is refused here must not wait for others in MPI_Finalize, unless it is alone in MPI's world.
  auto stay = std::make_unique<mpi::Stay>();
  int const size = mpi::world_size();
  try {
    check_place(info, mpi::world_rank(), size);
    std::shared_ptr<MpiControl> control(new MpiControl(info, deadline), DeleteOwn{});
    control->meet_others(deadline);
    return control;
  } catch (...) {
    if (size > 1) static_cast<void>(stay.release());
    throw;
  }
}

MpiControl::MpiControl(RankInfo const& info, Deadline deadline)
    : ControlClient(mpi::world_rank(), mpi::world_size()),
      error_file_(info.error_file),
      messages_(std::make_shared<mpi::Messages>(deadline)),
      stay_(std::make_unique<mpi::Stay>()) {
  if (rank() != kServer) return;
  server_ = std::make_shared<MpiServer>(messages_, size());
  mpi::before_end([server = server_](bool orderly) { orderly ? server->finish() : server->stop(); });
}

// If the rank has not left, MPI is not finalised, so that its exit is a failure.
MpiControl::~MpiControl() {
  if (has_left_) return;
  static_cast<void>(stay_.release());
  lifeline_.keep_open();  // the process goes on
}

void MpiControl::meet_others(Deadline deadline) {
  std::string const here = host_identity();
  auto const everybody = all_gather("ddp/mpi/place", record(here, ::getpid()), everyone(), deadline);
  local_size_ = 0;
  bool with_server = false;
  for (Rank const other : everyone()) {
    std::string host;
    int pid = 0;
    if (!(RecordReader(everybody[other.index()]) >> host >> pid)) {
      throw CommError(ErrorCode::protocol,
                      text("rank ", other, " says of its place \"", everybody[other.index()],
                           "\"; do all ranks run the same version of this library?"));
    }
    host_names_.push_back(host_name(host));
    if (host != here) continue;
    if (other == kServer) with_server = true;
    if (other == rank()) local_rank_ = LocalRank{local_size_};
    ++local_size_;
    if (other != rank()) neighbours_.push_back({other, pid, open_pidfd(pid)});
  }
  if (server_) {
    std::vector<std::pair<Rank, pid_t>> processes;
    for (Neighbour const& neighbour : neighbours_) processes.emplace_back(neighbour.rank, neighbour.pid);
    server_->know(std::move(processes));
  }
  if (local_size_ < size()) watch_other_hosts(with_server, deadline);
}

// A job of one host listens on no network. In a large job only the first rank of each host has a connection
// to rank 0, since a process may often have 1,024 files; ranks of one host watch each other.
void MpiControl::watch_other_hosts(bool with_server, Deadline deadline) {
  constexpr char const* kInvitation = "ddp/mpi/lifelines";
  if (rank() == kServer) {
    std::string invitation;
    try {
      auto lifelines = std::make_unique<Lifelines>(host_names_);
      invitation = lifelines->invitation();
      server_->watch(std::move(lifelines));
    } catch (Error const& error) {
      log(LogLevel::info, text("ranks of other hosts are not watched: ", error.what()));
    }
    put(kInvitation, invitation);
  } else if (!with_server && (size() <= kMostLifelines || local_rank_ == 0)) {
    lifeline_ = Lifeline(get(kInvitation, deadline), rank(), deadline);
  }
}

RankInfo MpiControl::completed(RankInfo info) const {
  info.rank = rank();
  info.size = size();
  if (info.local_known) return info;
  info.local_rank = local_rank_;
  info.local_size = local_size_;
  return info;
}

void MpiControl::send(wire::Frame const& frame) const {
  messages_->send(kServer, MpiServer::kRequestTag, wire::encode(frame));
}

ControlClient::Outcome MpiControl::ask(Request const& request, Deadline deadline) {
  std::uint64_t number = 0;
  {
    std::lock_guard const lock(mutex_);
    if (has_left_) return {has_left_already(rank()), {}};
    number = next_request_++;
  }
  send(request.frame(number));

  Backoff backoff(microseconds(200), microseconds(1000));
  PausingDeadline timeout(deadline);
  std::optional<PausingDeadline> grace;
  for (;;) {
    if (auto outcome = answer_to(number)) {
      bool const late = outcome->failure && outcome->failure->code == ErrorCode::timeout;
      if (late) note_stopped(*outcome->failure, *this, everyone());
      return std::move(*outcome);
    }
    if (!grace && timeout.ended()) {
      // The answer says which ranks are missing, unless the server has just answered the request itself.
      send({wire::Type::withdraw, number, {}, {}});
      grace.emplace(kAnswerGrace);
    }
    if (grace && grace->ended()) {
      Failure failure = server_is_silent();
      note_stopped(failure, kServer, process_of(kServer));
      return {std::move(failure), {}};
    }
    for (Failure const& lost : lost()) {
      if (lost.ranks.front() == kServer && lost.manner != Failure::Manner::left) return {lost, {}};
    }
    backoff.pause();
  }
}

std::optional<ControlClient::Outcome> MpiControl::answer_to(std::uint64_t request) {
  auto letter = messages_->receive(kServer, MpiServer::answer_tag(request));
  if (!letter) return std::nullopt;
  wire::Frame const frame = wire::decode(letter->bytes, wire::kFromServer, kServer);
  if (frame.request != request) return std::nullopt;  // the answer to a request that gave up long ago
  if (frame.type == wire::Type::done) return Outcome{std::nullopt, wire::decode_values(frame.value)};
  return Outcome{wire::decode_failure(frame.value), {}};
}

// Called with the mutex held, as is hear_news().
bool MpiControl::is_lost(Rank other) const {
  return std::ranges::any_of(lost_, [other](Failure const& lost) { return lost.ranks.front() == other; });
}

void MpiControl::hear_news() const {
  while (auto letter = messages_->receive(kServer, MpiServer::kNewsTag)) {
    Failure lost = wire::decode_lost(wire::decode(letter->bytes, wire::kFromServer, kServer).value);
    if (!is_lost(lost.ranks.front())) lost_.push_back(std::move(lost));
  }
}

std::vector<Failure> MpiControl::lost() const {
  std::lock_guard const lock(mutex_);
  if (has_left_) return lost_;
  hear_news();
  // A rank that ends in order does so after all have left, since MPI_Finalize waits for all.
  if (!is_lost(kServer) && lifeline_.has_ended()) {
    lost_.push_back(has_died(kServer, host_names_[0], text("its process on ", host_names_[0], " has ended")));
  }
  for (Neighbour const& neighbour : neighbours_) {
    if (!neighbour.pidfd || !has_ended(neighbour.pidfd)) continue;
    if (is_lost(neighbour.rank)) continue;
    lost_.push_back(has_died(neighbour.rank, host_names_[neighbour.rank.index()],
                             text("its process, ", neighbour.pid, ", has ended")));
    send({wire::Type::lost, 0, {}, wire::encode_failure(lost_.back())});
  }
  return lost_;
}

// After this rank has left, MPI may be finalised.
void MpiControl::post(Rank to, std::string_view channel, std::string_view bytes) {
  std::lock_guard const lock(mutex_);
  if (has_left_) return;
  messages_->send(to, MpiServer::kLetterTag,
                  wire::encode({wire::Type::letter, 0, std::string(channel), std::string(bytes)}), false);
}

std::optional<Letter> MpiControl::take(std::string_view channel) {
  std::lock_guard const lock(mutex_);
  if (has_left_) return std::nullopt;
  while (auto letter = messages_->receive(std::nullopt, MpiServer::kLetterTag)) {
    wire::Frame frame = wire::decode(letter->bytes, wire::from_rank(size()), letter->from);
    letters_.put(std::move(frame.key), {letter->from, std::move(frame.value)});
  }
  return letters_.take(channel);
}

void MpiControl::report_error(Failure const& failure) noexcept {
  write_error_file(error_file_, rank(), failure);
  ControlClient::report_error(failure);
}

void MpiControl::report_progress(Progress const& progress) noexcept {
  try {
    flight_recorder().say_progress(progress);
  } catch (std::exception const& error) {  // no memory for the recorder
    log(LogLevel::warning, error.what());
  }
}

void MpiControl::leave() noexcept {
  try {
    std::uint64_t number = 0;
    {
      std::lock_guard const lock(mutex_);
      if (std::exchange(has_left_, true)) return;
      number = next_request_++;
    }
    send({wire::Type::leave, number, {}, {}});
    PausingDeadline timeout(kAnswerGrace);
    Backoff backoff(microseconds(200), microseconds(1000));
    while (!answer_to(number) && !timeout.ended()) backoff.pause();
    // Where the program owns MPI, it may finalise it as soon as this returns.
    if (server_ && !mpi::is_ours()) server_->finish();
  } catch (std::exception const& error) {
    log(LogLevel::warning, text("leaving the group: ", error.what()));
  }
  stay_.reset();
}

}  // namespace ddp

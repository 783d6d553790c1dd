#include "bootstrap/launcher/control_server.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/system/process_stat.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kTimerId = 1;
constexpr std::size_t kRequestReadSize = (256_KiB).value;
constexpr std::size_t kMostAccepts = 64;       ///< in one process()
constexpr std::size_t kSpareConnections = 64;  ///< that have not joined, beyond one for each rank
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

ControlServer::ControlServer(Options options)
    : options_(std::move(options)),
      store_(options_.size),
      listener_(options_.parent_directory),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      buffer_(kRequestReadSize, '\0') {
  if (!timer_) throw_errno("making the control server's timer", errno);
  if (!epoll_) throw_errno("making the control server's epoll", errno);
  watch(EPOLL_CTL_ADD, listener_.descriptor(), kListenerId, EPOLLIN);
  watch(EPOLL_CTL_ADD, timer_.get(), kTimerId, EPOLLIN);
}

void ControlServer::watch(int operation, int descriptor, std::uint64_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0)
    throw_errno("watching a control socket", errno);
}

std::vector<ControlServer::Event> ControlServer::process() {
  std::array<epoll_event, 64> ready;
  int const count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  if (count < 0 && errno != EINTR) throw_errno("waiting for control sockets", errno);
  for (int i = 0; i < count; ++i) {
    std::uint64_t const id = ready[static_cast<std::size_t>(i)].data.u64;
    if (id == kListenerId) {
      for (std::size_t accepts = 0; accepts < kMostAccepts && accept_one();) ++accepts;
    } else if (id == kTimerId) {
      std::uint64_t ticks = 0;
      [[maybe_unused]] auto const taken = ::read(timer_.get(), &ticks, sizeof ticks);
      alarm_.reset();
    } else if (auto const found = connections_.find(id); found != connections_.end()) {
      serve(id, found->second);
    }
  }
  // If the array was full, other connections may have bytes that came in time and are not read yet.
  if (count < static_cast<int>(ready.size())) break_overdue();
  sweep();
  set_timer();
  return std::exchange(events_, {});
}

bool ControlServer::accept_one() {
  FileDescriptor socket(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EMFILE || errno == ENFILE) {
      if (drop_oldest_stranger()) return true;
      // No connection can be closed. The listener would stay readable, so it is not watched for a while.
      watch(EPOLL_CTL_MOD, listener_.descriptor(), kListenerId, 0);
      accept_again_ = Clock::now() + kAcceptPause;
      log(LogLevel::warning, "control server: no file descriptor left for a new connection (ulimit -n)");
    }
    return errno == EINTR || errno == ECONNABORTED;
  }
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return true;
  if (peer.uid != ::geteuid() && peer.uid != 0) {
    log(LogLevel::warning, text("control server: refused process ", peer.pid, " of user ", peer.uid,
                                "; only user ", ::geteuid(), " and root may connect"));
    return true;
  }
  std::size_t const strangers = connections_.size() - of_rank_.size();
  if (strangers >= static_cast<std::size_t>(options_.size) + kSpareConnections) drop_oldest_stranger();
  std::uint64_t const id = next_id_++;
  auto const [place, added] =
      connections_.try_emplace(id, std::move(socket), peer.pid, Clock::now() + options_.frame_deadline);
  place->second.watched = EPOLLIN;
  watch(EPOLL_CTL_ADD, place->second.descriptor(), id, EPOLLIN);
  // A rank sends its join right after connecting: it is often there already.
  serve(id, place->second);
  return true;
}

bool ControlServer::drop_oldest_stranger() {
  auto const oldest =
      std::ranges::find_if(connections_, [](auto const& entry) { return !entry.second.rank(); });
  if (oldest == connections_.end()) return false;
  connections_.erase(oldest);
  return true;
}

void ControlServer::serve(std::uint64_t id, ServerConnection& connection) {
  connection.flush();
  if (connection.paused() || connection.broken()) return;
  if (!connection.read(buffer_)) return;
  while (auto frame = connection.next_frame()) handle(id, connection, std::move(*frame));
  connection.expect_rest_by(Clock::now() + options_.frame_deadline);
}

void ControlServer::handle(std::uint64_t id, ServerConnection& connection, wire::Frame frame) try {
  using wire::Type;
  if (!connection.rank()) {
    join(id, connection, frame);
    return;
  }
  Rank const rank = *connection.rank();
  if (auto const answers = store_.handle(rank, frame)) return deliver(*answers);
  switch (frame.type) {
    case Type::error:
      events_.push_back(
          {Event::Kind::error, rank, connection.pid(),
           wire::decode_failure(std::string_view(frame.value).substr(0, wire::kLongestFailure))});
      break;
    case Type::progress:
      events_.push_back(
          {Event::Kind::progress, rank, connection.pid(), {}, wire::decode_progress(frame.value)});
      break;
    case Type::leave:
      events_.push_back({Event::Kind::left, rank, connection.pid()});
      declare_lost(has_left(rank));
      connection.send(frame.request, {});
      break;
    default:
      connection.break_off(text("unexpected frame of type ", static_cast<int>(frame.type)));
  }
} catch (Error const& error) {  // from a decoder: the frame's value is malformed
  connection.break_off(error.what());
}

void ControlServer::join(std::uint64_t id, ServerConnection& connection, wire::Frame const& frame) {
  if (frame.type != wire::Type::join) {
    connection.break_off(
        text("its first frame is of type ", static_cast<int>(frame.type), ", expected join"));
    return;
  }
  wire::Join const wanted = wire::decode_join(frame.value);
  if (std::string const reason = why_not(wanted, connection.pid()); !reason.empty()) {
    Failure const refused = refusal(wanted.rank, ErrorCode::invalid_state, reason);
    connection.send({wire::Type::failed, frame.request, {}, wire::encode_failure(refused)});
    connection.break_off(reason);
    return;
  }
  connection.joined_as(wanted.rank, options_.size);
  of_rank_[wanted.rank] = id;
  events_.push_back({Event::Kind::joined, wanted.rank, connection.pid()});
  connection.send(frame.request, {});
  for (Failure const& lost : store_.lost()) {
    connection.send({wire::Type::lost, 0, {}, wire::encode_failure(lost)});
  }
}

// Why it may not join; empty if it may.
std::string ControlServer::why_not(wire::Join const& join, pid_t pid) const {
  if (join.size != options_.size) {
    return text("the job has ", options_.size, " ranks, but this process expects ", join.size,
                " (WORLD_SIZE)");
  }
  if (join.rank.value() >= options_.size) {
    return text("the job's ranks are 0 to ", options_.size - 1, ", this process is rank ", join.rank,
                " (RANK)");
  }
  if (auto const other = of_rank_.find(join.rank); other != of_rank_.end()) {
    pid_t const joined = connections_.at(other->second).pid();
    return joined == pid ? text("this process has joined as rank ", join.rank,
                                " already: a process makes one World; copy it, or make World::subgroup()")
                         : text("process ", joined, " has joined as rank ", join.rank,
                                " already: a process that a rank starts must not join too");
  }
  if (Failure const* lost = store_.find_lost(join.rank)) {
    return text(to_string(*lost), "; a rank cannot come back into the same job");
  }
  return {};
}

void ControlServer::deliver(ControlStore::Answers const& answers) {
  for (ControlStore::Answer const& answer : answers) {
    auto const of_rank = of_rank_.find(answer.to.rank);
    if (of_rank == of_rank_.end()) continue;
    ServerConnection& connection = connections_.at(of_rank->second);
    if (answer.failure) {
      Failure failure = *answer.failure;
      if (failure.code == ErrorCode::timeout) {
        for (auto const& [rank, id] : of_rank_) note_stopped(failure, rank, connections_.at(id).pid());
      }
      connection.send({wire::Type::failed, answer.to.number, {}, wire::encode_failure(failure)});
    } else {
      connection.send(answer.to.number, answer.values);
    }
  }
}

void ControlServer::leave_out(Clock::duration stopped) {
  for (auto& [id, connection] : connections_) connection.delay(stopped);
  set_timer();
}

// The notice goes out before the failures that it causes: whoever catches one finds the rank in lost().
void ControlServer::declare_lost(Failure const& lost) {
  bool const known = store_.find_lost(lost.ranks.front()) != nullptr;
  ControlStore::Answers const answers = store_.lose(lost);
  if (known || store_.find_lost(lost.ranks.front()) == nullptr)
    return;  // known already, or no rank of this job
  for (auto const& [rank, id] : of_rank_) {
    connections_.at(id).send({wire::Type::lost, 0, {}, wire::encode_failure(lost)});
  }
  deliver(answers);
  set_timer();
}

void ControlServer::break_overdue() {
  auto const now = Clock::now();
  for (auto& [id, connection] : connections_) {
    if (!connection.overdue() || *connection.overdue() > now) continue;
    connection.break_off(text(connection.rank() ? "the rest of a frame" : "its join", " did not come within ",
                              seconds(options_.frame_deadline), " s"));
  }
}

// Removes broken connections, and tells epoll what the others wait for.
void ControlServer::sweep() {
  bool removed = false;
  for (auto entry = connections_.begin(); entry != connections_.end();) {
    auto& [id, connection] = *entry;
    if (!connection.broken()) {
      std::uint32_t const wanted = (connection.paused() ? 0U : EPOLLIN) |
                                   (connection.wants_to_send() ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
      if (wanted != connection.watched) {
        watch(EPOLL_CTL_MOD, connection.descriptor(), id, wanted);
        connection.watched = wanted;
      }
      ++entry;
      continue;
    }
    connection.say_why();
    if (auto const rank = connection.rank()) {
      of_rank_.erase(*rank);
      store_.forget(*rank);
      if (store_.find_lost(*rank) == nullptr) {
        events_.push_back({Event::Kind::disconnected,
                           *rank,
                           connection.pid(),
                           {.code = ErrorCode::protocol, .detail = *connection.broken()}});
      }
    } else {
      log(LogLevel::debug,
          text("control server: dropped process ", connection.pid(), ": ", *connection.broken()));
    }
    entry = connections_.erase(entry);
    removed = true;
  }
  if (accept_again_ && (removed || *accept_again_ <= Clock::now())) {
    accept_again_.reset();
    watch(EPOLL_CTL_MOD, listener_.descriptor(), kListenerId, EPOLLIN);
  }
}

// For when the next connection is overdue; at once if one broke, or has bytes to send, since process().
void ControlServer::set_timer() {
  std::optional<Clock::time_point> next = accept_again_;
  for (auto const& [id, connection] : connections_) {
    bool const unwatched = connection.wants_to_send() && (connection.watched & EPOLLOUT) == 0;
    bool const at_once = unwatched || connection.broken();
    auto const wanted = at_once ? Clock::time_point{} + std::chrono::nanoseconds(1) : connection.overdue();
    if (wanted && (!next || *wanted < *next)) next = wanted;
  }
  if (next == alarm_) return;
  itimerspec when{};
  if (next) {
    auto const since = std::chrono::duration_cast<std::chrono::nanoseconds>(next->time_since_epoch()).count();
    when.it_value.tv_sec = since / 1000000000;
    when.it_value.tv_nsec = since % 1000000000;
  }
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0)
    throw_errno("setting a timer", errno);
  alarm_ = next;
}

}  // namespace ddp

#include "bootstrap/server/control_server.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "bootstrap/server/tcp.hpp"
#include "bootstrap/server/unix_socket.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kTimerId = 1;
constexpr std::uint64_t kNetworkId = 2;
constexpr std::uint64_t kGuardsRequest = 1;  ///< the only one that a guard makes
constexpr std::size_t kRequestReadSize = (256_KiB).value;
constexpr std::size_t kMostAccepts = 64;       ///< in one process()
constexpr std::size_t kSpareConnections = 64;  ///< that have not joined, beyond one for each rank
constexpr std::chrono::milliseconds kAcceptPause{100};
// Told when none has left for this long, or the first one so long ago.
constexpr std::chrono::milliseconds kAfterALeaving{20};
constexpr std::chrono::milliseconds kAfterTheFirstLeaving{500};

// It takes as long for every secret of this length.
bool is_same_secret(std::string_view given, std::string_view secret) {
  if (given.size() != secret.size()) return false;
  int difference = 0;
  for (std::size_t i = 0; i < given.size(); ++i) difference |= given[i] ^ secret[i];
  return difference == 0;
}

// Nothing of a socket without a file is left when its process is killed.
ControlServer::Options with_a_path(ControlServer::Options options) {
  if (options.path.empty()) options.path = "@ddp-" + tcp::make_secret();
  return options;
}

}  // namespace

ControlServer::ControlServer(Options options, FileDescriptor network)
    : options_(with_a_path(std::move(options))),
      store_(options_.size),
      listener_(unix_socket::listen(options_.path)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      buffer_(kRequestReadSize, '\0') {
  if (!timer_) throw_errno("making the control server's timer", errno);
  if (!epoll_) throw_errno("making the control server's epoll", errno);
  watch(EPOLL_CTL_ADD, listener_.get(), kListenerId, EPOLLIN);
  watch(EPOLL_CTL_ADD, timer_.get(), kTimerId, EPOLLIN);
  if (!network) return;
  network_.emplace(std::move(network));
  watch(EPOLL_CTL_ADD, network_->get(), kNetworkId, EPOLLIN);
}

void ControlServer::watch(int operation, int descriptor, std::uint64_t id, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0)
    throw_errno("watching a control socket", errno);
}

void ControlServer::watch_listeners(std::uint32_t events) {
  watch(EPOLL_CTL_MOD, listener_.get(), kListenerId, events);
  if (network_) watch(EPOLL_CTL_MOD, network_->get(), kNetworkId, events);
}

std::vector<ControlServer::Event> ControlServer::process() {
  std::array<epoll_event, 64> ready;
  int const count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  if (count < 0 && errno != EINTR) throw_errno("waiting for control sockets", errno);
  for (int i = 0; i < count; ++i) {
    std::uint64_t const id = ready[static_cast<std::size_t>(i)].data.u64;
    if (id == kListenerId || id == kNetworkId) {
      for (std::size_t accepts = 0; accepts < kMostAccepts && accept_one(id == kNetworkId);) ++accepts;
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
  if (tell_at_ && *tell_at_ <= Clock::now()) tell_of_lost();
  sweep();
  set_timer();
  return std::exchange(events_, {});
}

bool ControlServer::accept_one(bool from_network) {
  if (from_network && !network_) return false;
  int const listening = from_network ? network_->get() : listener_.get();
  FileDescriptor socket(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno == EMFILE || errno == ENFILE) {
      if (drop_oldest_stranger()) return true;
      // None can be closed. The listeners stay readable, so they are not watched for a while.
      watch_listeners(0);
      accept_again_ = Clock::now() + kAcceptPause;
      log(LogLevel::warning, "control server: no file descriptor left for a new connection (ulimit -n)");
    }
    return errno == EINTR || errno == ECONNABORTED;
  }
  ucred peer{};
  if (from_network) {
    tcp::tune(socket.get());
  } else {
    socklen_t length = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return true;
    if (peer.uid != ::geteuid() && peer.uid != 0) {
      log(LogLevel::warning, text("control server: refused process ", peer.pid, " of user ", peer.uid,
                                  "; only user ", ::geteuid(), " and root may connect"));
      return true;
    }
  }
  std::size_t const strangers = connections_.size() - of_rank_.size();
  if (strangers >= static_cast<std::size_t>(options_.size) + kSpareConnections) drop_oldest_stranger();
  std::uint64_t const id = next_id_++;
  auto const [place, added] = connections_.try_emplace(id, std::move(socket), peer.pid, !from_network,
                                                       awake() + options_.frame_deadline, traffic_);
  place->second.watched = EPOLLIN;
  watch(EPOLL_CTL_ADD, place->second.descriptor(), id, EPOLLIN);
  // A rank sends its join right after connecting: it is often there already.
  serve(id, place->second);
  return true;
}

// One that knows the secret, or is this user's, only if there is no other.
bool ControlServer::drop_oldest_stranger() {
  auto oldest = std::ranges::find_if(
      connections_, [](auto const& entry) { return !entry.second.rank() && !entry.second.knows_secret(); });
  if (oldest == connections_.end()) {
    oldest = std::ranges::find_if(connections_, [](auto const& entry) { return !entry.second.rank(); });
  }
  if (oldest == connections_.end()) return false;
  connections_.erase(oldest);
  return true;
}

void ControlServer::serve(std::uint64_t id, RankConnection& connection) {
  connection.flush();
  if (connection.paused() || connection.broken()) return;
  if (!connection.read(buffer_)) return;
  while (auto frame = connection.next_frame()) handle(id, connection, std::move(*frame));
  connection.expect_rest_by(awake() + options_.frame_deadline);
}

void ControlServer::handle(std::uint64_t id, RankConnection& connection, wire::Frame frame) try {
  using wire::Type;
  if (!connection.knows_secret()) return greet(connection, frame);
  if (!connection.rank()) {
    return frame.type == Type::ended ? hear_end(id, connection, frame) : join(id, connection, frame);
  }
  Rank const rank = *connection.rank();
  if (auto const answers = store_.handle(rank, frame)) {
    bool const fails =
        std::ranges::any_of(*answers, [](auto const& answer) { return answer.failure.has_value(); });
    if (fails && tell_at_) tell_of_lost();
    return deliver(*answers);
  }
  switch (frame.type) {
    case Type::error:
      happened(Event::Kind::error, connection).failure =
          wire::decode_failure(std::string_view(frame.value).substr(0, wire::kLongestFailure));
      break;
    case Type::notice:
      pass_on(rank, frame);
      break;
    case Type::leave:
      happened(Event::Kind::left, connection);
      if (rank == Rank{0} && options_.of_rank_0) network_.reset();  // all have joined
      declare_lost(has_left(rank));
      connection.send(frame.request, {});
      break;
    default:
      connection.break_off(text("unexpected frame of type ", static_cast<int>(frame.type)));
  }
} catch (Error const& error) {  // from a decoder: the frame's value is malformed
  connection.break_off(error.what());
}

ControlServer::Event& ControlServer::happened(Event::Kind kind, RankConnection const& connection) {
  wire::Join const& who = *connection.who();
  return events_.emplace_back(Event{kind, who.rank, connection.pid(), who.process, who.host});
}

// Nothing is said to a stranger, not even that it is one.
void ControlServer::greet(RankConnection& connection, wire::Frame const& frame) {
  if (frame.type != wire::Type::hello || !is_same_secret(frame.value, options_.secret)) {
    connection.break_off("it does not know the job's secret");
    return;
  }
  connection.has_said_secret();
  connection.send(frame.request, {});
}

void ControlServer::pass_on(Rank from, wire::Frame const& frame) {
  wire::Reader reader(frame.value);
  auto const to = wire::decode_group(reader, options_.size);
  std::string const bytes = wire::encode_rank(from).append(reader.rest());
  for (Rank const rank : to) {
    auto const found = of_rank_.find(rank);
    if (found == of_rank_.end()) continue;
    connections_.at(found->second).send({wire::Type::notice, 0, frame.key, bytes});
  }
}

void ControlServer::join(std::uint64_t id, RankConnection& connection, wire::Frame const& frame) {
  if (frame.type != wire::Type::join) {
    connection.break_off(
        text("its first frame is of type ", static_cast<int>(frame.type), ", expected join"));
    return;
  }
  wire::Join const wanted = wire::decode_join(frame.value);
  if (std::string const reason = why_not(wanted, connection.pid()); !reason.empty()) {
    bool const may_come_again = connection.pid() == 0 && store_.find_lost(wanted.rank) != nullptr;
    Failure const refused =
        refusal(wanted.rank, may_come_again ? ErrorCode::io : ErrorCode::invalid_state, reason);
    connection.send({wire::Type::failed, frame.request, {}, wire::encode_failure(refused)});
    connection.break_off(reason);
    return;
  }
  if (tell_at_) tell_of_lost();  // so that this rank hears once of each
  connection.joined_as(wanted);
  of_rank_[wanted.rank] = id;
  happened(Event::Kind::joined, connection);
  connection.send(frame.request, {});
  for (Failure const& lost : store_.lost()) {
    connection.send({wire::Type::lost, 0, {}, wire::encode_failure(lost)});
  }
}

// Why it is no rank of this job; empty if it is one.
std::string ControlServer::why_of_another_job(wire::Join const& join) const {
  if (join.size != options_.size) {
    return text("the job has ", options_.size, " ranks, but this process expects ", join.size,
                " (WORLD_SIZE)");
  }
  if (join.generation != options_.generation) {
    return text("the job is in its generation ", options_.generation, ", this process is of generation ",
                join.generation, " (DDP_GENERATION)");
  }
  if (join.rank.value() >= options_.size) {
    return text("the job's ranks are 0 to ", options_.size - 1, ", this process is rank ", join.rank,
                " (RANK)");
  }
  return {};
}

// Why it may not join; empty if it may.
std::string ControlServer::why_not(wire::Join const& join, pid_t pid) const {
  if (std::string why = why_of_another_job(join); !why.empty()) return why;
  if (Failure const* lost = store_.find_lost(join.rank)) {
    return text(to_string(*lost),
                pid == 0 ? "; rank 0 is still in that World: the next begins when rank 0 has let it go"
                         : "; a rank cannot come back into the same job");
  }
  if (auto const other = of_rank_.find(join.rank); other != of_rank_.end()) {
    RankConnection const& joined_before = connections_.at(other->second);
    pid_t const joined = joined_before.pid();
    if (joined == 0 || pid == 0) {
      return text("a process on ", joined_before.who()->host, " has joined as rank ", join.rank,
                  " already: is another job using this address?");
    }
    return joined == pid ? text("this process has joined as rank ", join.rank,
                                " already: a process makes one World; copy it, or make World::subgroup()")
                         : text("process ", joined, " has joined as rank ", join.rank,
                                " already: a process that a rank starts must not join too");
  }
  return {};
}

void ControlServer::hear_end(std::uint64_t id, RankConnection& connection, wire::Frame const& frame) {
  wire::Join const who = wire::decode_join(frame.value);
  if (std::string why = why_of_another_job(who); !why.empty()) return connection.break_off(std::move(why));
  events_.push_back(Event{.kind = Event::Kind::ended,
                          .rank = who.rank,
                          .process = who.process,
                          .host = who.host,
                          .words = frame.key});
  connection.need_not_join();
  guards_[id] = who.rank;
}

void ControlServer::let_guards_go(std::optional<Rank> rank) {
  for (auto const& [id, of] : guards_) {
    auto const found = connections_.find(id);
    if (found != connections_.end() && of == rank.value_or(of)) found->second.send(kGuardsRequest, {});
  }
  std::erase_if(guards_, [&](auto const& guard) { return guard.second == rank.value_or(guard.second); });
  set_timer();
}

void ControlServer::deliver(ControlStore::Answers const& answers) {
  for (ControlStore::Answer const& answer : answers) {
    auto const of_rank = of_rank_.find(answer.to.rank);
    if (of_rank == of_rank_.end()) continue;
    RankConnection& connection = connections_.at(of_rank->second);
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

// Ranks that end in order mostly do so together: told a moment later, their leaving needs to be told to few.
// Other failures are told at once, and before those that they cause: when a failure is caught, the rank is in
// lost().
void ControlServer::declare_lost(Failure const& lost) {
  bool const known = store_.find_lost(lost.ranks.front()) != nullptr;
  ControlStore::Answers const answers = store_.lose(lost);
  if (known || store_.find_lost(lost.ranks.front()) == nullptr) return;  // known, or no rank of this job
  untold_.push_back(lost);
  auto const now = Clock::now();
  if (!tell_at_) tell_at_latest_ = now + kAfterTheFirstLeaving;
  tell_at_ = std::min(now + kAfterALeaving, tell_at_latest_);
  if (lost.manner != Failure::Manner::left || !answers.empty()) tell_of_lost();
  deliver(answers);
  set_timer();
}

// Those that have left need not know.
void ControlServer::tell_of_lost() {
  for (auto const& [rank, id] : of_rank_) {
    Failure const* own = store_.find_lost(rank);
    if (own != nullptr && own->manner == Failure::Manner::left) continue;
    for (Failure const& lost : untold_) {
      connections_.at(id).send({wire::Type::lost, 0, {}, wire::encode_failure(lost)});
    }
  }
  untold_.clear();
  tell_at_.reset();
}

void ControlServer::break_overdue() {
  auto const now = awake();
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
        happened(Event::Kind::disconnected, connection).failure = {.code = ErrorCode::protocol,
                                                                   .detail = *connection.broken()};
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
    watch_listeners(EPOLLIN);
  }
}

// For when the next connection is overdue, and for looks at awake() until then; at once if one broke, or has
// bytes to send, since process().
void ControlServer::set_timer() {
  auto const now = Clock::now();
  auto const awake_now = awake();
  std::optional<Clock::time_point> next = accept_again_;
  if (tell_at_ && (!next || *tell_at_ < *next)) next = tell_at_;
  for (auto const& [id, connection] : connections_) {
    bool const unwatched = connection.wants_to_send() && (connection.watched & EPOLLOUT) == 0;
    bool const at_once = unwatched || connection.broken();
    auto wanted = connection.overdue();
    if (wanted) wanted = now + std::min<Clock::duration>(*wanted - awake_now, PausingDeadline::kLongestNap);
    if (at_once) wanted = Clock::time_point{} + std::chrono::nanoseconds(1);
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

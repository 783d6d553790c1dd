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
#include "core/record.hpp"
#include "core/system/host_identity.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kTimerId = 1;
constexpr std::uint64_t kNetworkId = 2;
constexpr std::size_t kRequestReadSize = (256_KiB).value;
constexpr std::size_t kMostAccepts = 64;       ///< in one process()
constexpr std::size_t kSpareConnections = 64;  ///< that have not joined, beyond one for each rank
constexpr std::chrono::milliseconds kAcceptPause{100};

// Nothing of a socket without a file is left when its process is killed.
ControlServer::Options with_a_path(ControlServer::Options options) {
  if (options.path.empty()) options.path = "@ddp-" + tcp::make_secret();
  return options;
}

}  // namespace

ControlServer::ControlServer(Options options, FileDescriptor network)
    : options_(with_a_path(std::move(options))),
      here_(std::make_shared<std::string const>(record(host_name(host_identity()), ::getpid()))),
      store_(options_.size, {.min_ranks = options_.min_ranks}),
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
    } else if (auto const found = connections_.find(id); found != connections_.end()) {
      serve(found->second);
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
  serve(place->second);
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

void ControlServer::serve(RankConnection& connection) {
  connection.flush();
  if (connection.paused() || connection.broken()) return;
  if (!connection.read(buffer_)) return;
  while (auto frame = connection.next_frame()) handle(connection, std::move(*frame));
  connection.expect_rest_by(awake() + options_.frame_deadline);
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
  itimerspec when{};
  if (next) {
    auto const since = std::chrono::duration_cast<std::chrono::nanoseconds>(next->time_since_epoch()).count();
    when.it_value.tv_sec = since / 1000000000;
    when.it_value.tv_nsec = since % 1000000000;
  }
  if (::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) != 0)
    throw_errno("setting a timer", errno);
}

}  // namespace ddp

#include "bootstrap/mpi/lifelines.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <utility>

#include "bootstrap/control_store.hpp"
#include "core/parse_number.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// A rank sends "SECRET RANK\n", gets kWelcome, and answers kHolds on the connection that it keeps.
constexpr char kWelcome = 'w';
constexpr char kHolds = 'h';
constexpr std::size_t kLongestGreeting = 64;
constexpr std::size_t kMostStrangers = 256;
constexpr std::chrono::milliseconds kTimeToConnect{2000};

std::string make_secret() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("making a secret for connections between hosts", errno);
  }
  Classic<std::ostringstream> words;
  for (unsigned const byte : bytes) words << std::hex << (byte >> 4U) << (byte & 0xfU);
  return std::move(words).str();
}

// On IPv6 and IPv4; on IPv4 alone where the kernel has no other.
FileDescriptor listen_anywhere() {
  FileDescriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  int const no = 0;
  if (!socket || ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0 ||
      ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&any6), sizeof any6) != 0) {
    socket = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&any), sizeof any) != 0) {
      throw_errno("binding a socket for ranks of other hosts", errno);
    }
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) throw_errno("listening for ranks of other hosts", errno);
  return socket;
}

int port_of(FileDescriptor const& socket) {
  sockaddr_in6 address{};  // the port is at the same place in both kinds
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_errno("asking for a socket's port", errno);
  }
  return ntohs(address.sin6_port);
}

// This host's, as other hosts may reach them.
std::vector<std::string> own_addresses() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) throw_errno("listing network interfaces", errno);
  std::vector<std::string> addresses;
  for (ifaddrs const* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0 ||
        (each->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    auto const family = each->ifa_addr->sa_family;
    bool const v6 = family == AF_INET6;
    if (!v6 && family != AF_INET) continue;
    if (v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6 const*>(each->ifa_addr)->sin6_addr))
      continue;
    char words[NI_MAXHOST] = {};
    socklen_t const length = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (::getnameinfo(each->ifa_addr, length, words, sizeof words, nullptr, 0, NI_NUMERICHOST) == 0) {
      addresses.emplace_back(words);
    }
  }
  ::freeifaddrs(all);
  return addresses;
}

// Begins to connect; empty if that fails at once.
FileDescriptor call(std::string const& address, std::string const& port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), port.c_str(), &wanted, &found) != 0) return {};
  FileDescriptor socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  bool const begun =
      socket && (::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
  ::freeaddrinfo(found);
  return begun ? std::move(socket) : FileDescriptor{};
}

bool send_all(FileDescriptor const& socket, std::string_view bytes) {
  return ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

enum class Heard { nothing, bytes, end, trouble };

// Heard::trouble is an error of the network; the peer may be alive.
Heard hear(int socket, std::string& bytes) {
  char buffer[kLongestGreeting];
  ssize_t const count = ::recv(socket, buffer, sizeof buffer, MSG_DONTWAIT);
  if (count > 0) {
    bytes.append(buffer, static_cast<std::size_t>(count));
    return Heard::bytes;
  }
  if (count == 0 || errno == ECONNRESET) return Heard::end;
  return errno == EAGAIN || errno == EINTR ? Heard::nothing : Heard::trouble;
}

}  // namespace

Lifelines::Lifelines(std::vector<std::string> host_names)
    : host_names_(std::move(host_names)),
      has_line_(host_names_.size()),
      secret_(make_secret()),
      listening_(listen_anywhere()),
      events_(::epoll_create1(EPOLL_CLOEXEC)) {
  invitation_ = text(secret_, ',', port_of(listening_), ',', join(own_addresses(), ","));
  epoll_event event{EPOLLIN, {.fd = listening_.get()}};
  if (!events_ || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, listening_.get(), &event) != 0) {
    throw_errno("waiting for ranks of other hosts", errno);
  }
}

std::vector<Failure> Lifelines::ended() {
  std::vector<Failure> gone;
  std::array<epoll_event, 256> events{};
  int const count = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    int const socket = events[static_cast<std::size_t>(i)].data.fd;
    if (socket == listening_.get()) {
      take_in();
      continue;
    }
    auto const line = lines_.find(socket);
    if (line == lines_.end() || read(line->second)) continue;
    if (line->second.holds) {
      std::string const& host = host_names_[line->second.rank->index()];
      gone.push_back(has_died(*line->second.rank, host, text("its process on ", host, " has ended")));
    }
    std::erase(strangers_, socket);
    lines_.erase(line);
  }
  return gone;
}

// Accepts a few at a time, so that their greetings are read before too many unknown connections are open.
void Lifelines::take_in() {
  for (std::size_t i = 0; i < kMostStrangers / 4; ++i) {
    FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (strangers_.size() == kMostStrangers) {
      lines_.erase(strangers_.front());
      strangers_.erase(strangers_.begin());
    }
    int const number = socket.get();
    epoll_event event{EPOLLIN | EPOLLRDHUP, {.fd = number}};
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, number, &event) != 0) return;
    lines_[number].socket = std::move(socket);
    strangers_.push_back(number);
  }
}

bool Lifelines::read(Line& line) {
  std::string bytes;
  Heard const heard = hear(line.socket.get(), bytes);
  // A rank that the network cut off may be alive, and must not see its connection closed.
  if (heard == Heard::trouble && line.rank) {
    ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, line.socket.get(), nullptr);
    return true;
  }
  if (heard != Heard::bytes) return heard == Heard::nothing;
  if (line.rank) {
    // The first connection that a rank holds counts. Another one is not closed, since the rank would take
    // that for the end of rank 0.
    if (bytes.front() == kHolds && !has_line_[line.rank->index()]) {
      has_line_[line.rank->index()] = true;
      line.holds = true;
    }
    return true;
  }
  line.greeting += bytes;
  if (!line.greeting.ends_with('\n')) return line.greeting.size() < kLongestGreeting;
  auto const rank = rank_of(line.greeting);
  if (!rank || has_line_[rank->index()]) return false;
  line.rank = rank;
  std::erase(strangers_, line.socket.get());
  return send_all(line.socket, {&kWelcome, 1});
}

// nullopt for a wrong secret, and for anything but a rank that connects, which is 1 or above.
std::optional<Rank> Lifelines::rank_of(std::string_view greeting) const {
  if (!greeting.starts_with(secret_ + ' ')) return std::nullopt;
  greeting.remove_prefix(secret_.size() + 1);
  greeting.remove_suffix(1);  // '\n'
  auto const rank = parse_number<int>(greeting);
  bool const is_rank = rank && *rank > 0 && static_cast<std::size_t>(*rank) < host_names_.size();
  return is_rank ? std::optional(Rank{*rank}) : std::nullopt;
}

Lifeline::Lifeline(std::string const& invitation, Rank me, Deadline deadline) {
  Classic<std::istringstream> words(invitation);
  std::string secret;
  std::string port;
  std::getline(words, secret, ',');
  std::getline(words, port, ',');
  struct Call {
    FileDescriptor socket;
    bool greeted = false;
  };
  std::vector<Call> calls;
  for (std::string address; std::getline(words, address, ',');) {
    if (auto socket = call(address, port)) calls.push_back({std::move(socket), false});
  }
  std::string const greeting = text(secret, ' ', me, '\n');
  Deadline const give_up = Deadline::after(std::min(kTimeToConnect, deadline.remaining()));
  while (!calls.empty() && !give_up.expired()) {
    std::vector<pollfd> waits;
    for (Call const& each : calls) {
      waits.push_back({each.socket.get(), static_cast<short>(each.greeted ? POLLIN : POLLOUT), 0});
    }
    if (::poll(waits.data(), waits.size(), static_cast<int>(give_up.remaining().count())) <= 0) continue;
    for (std::size_t i = waits.size(); i-- > 0;) {
      if (waits[i].revents == 0) continue;
      Call& each = calls[i];
      if (!each.greeted) {
        each.greeted = (waits[i].revents & POLLOUT) != 0 && send_all(each.socket, greeting);
        if (!each.greeted) calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      std::string answer;
      bool const welcome = hear(each.socket.get(), answer) == Heard::bytes && answer[0] == kWelcome;
      if (welcome && send_all(each.socket, {&kHolds, 1})) {
        socket_ = std::move(each.socket);
        return;
      }
      calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  log(LogLevel::info, text("rank ", me,
                           " has no connection to rank 0's host but MPI's (a firewall?): of a killed "
                           "process on another host it hears when mpirun or NCCL does"));
}

bool Lifeline::has_ended() noexcept {
  if (!socket_ || lost_touch_) return false;
  char byte = 0;
  ssize_t const count = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  if (count == 0 || (count < 0 && errno == ECONNRESET)) return true;
  lost_touch_ = count < 0 && errno != EAGAIN && errno != EINTR;  // after that, recv says 0
  return false;
}

void Lifeline::keep_open() noexcept { static_cast<void>(socket_.release()); }

}  // namespace ddp

#include "bootstrap/server/tcp.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "bootstrap/bounded_call.hpp"
#include "bootstrap/wire.hpp"
#include "core/pausing_deadline.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRound{2000};  ///< in which one of the addresses should answer
constexpr milliseconds kBetweenRounds{100};

constexpr char const* kOtherPort = " for the other ranks (MASTER_PORT chooses another)";

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

struct Answer {
  std::vector<Address> addresses;
  std::string problem;
};

Answer ask_resolver(std::string const& host, int port, int flags = 0) noexcept {
  Answer answer;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  if (int const error = ::getaddrinfo(host.c_str(), text(port).c_str(), &wanted, &found)) {
    answer.problem = text("no address of \"", host, "\" is known: ", ::gai_strerror(error));
    return answer;
  }
  for (addrinfo const* each = found; each != nullptr; each = each->ai_next) {
    Address& address = answer.addresses.emplace_back();
    std::memcpy(&address.bytes, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return answer;
}

// At a number, of which the resolver asks nobody. Empty, with errno set, if it cannot listen there. All of
// IPv6 is all of IPv4 too.
FileDescriptor listen_at(std::string const& host, int port) {
  auto const found = ask_resolver(host, port, AI_NUMERICHOST).addresses;
  if (found.empty()) {
    errno = EADDRNOTAVAIL;
    return {};
  }
  Address const& address = found.front();
  auto const family = address.bytes.ss_family;
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int const yes = 1;
  int const no = 0;
  bool const listens =
      socket &&
      (family != AF_INET6 || ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0) &&
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      ::bind(socket.get(), reinterpret_cast<sockaddr const*>(&address.bytes), address.length) == 0 &&
      ::listen(socket.get(), SOMAXCONN) == 0;
  if (listens) return socket;
  int const problem = errno;
  socket.reset();
  errno = problem;
  return {};
}

// The addresses of a name. The resolver cannot be interrupted, so it runs in a thread of its own.
std::vector<Address> resolve(std::string const& host, int port, PausingDeadline& timeout, Failure& problem) {
  auto const answer = std::make_shared<Answer>();
  if (!call_within(timeout, [answer, host, port] { *answer = ask_resolver(host, port); })) {
    problem.detail = text("the name \"", host, "\" is not resolved: the resolver does not answer");
    return {};
  }
  if (!answer->problem.empty()) problem.detail = answer->problem;
  return answer->addresses;
}

// One address that is tried.
struct Attempt {
  FileDescriptor socket;
  bool greeted = false;
  wire::Decoder decoder{wire::kFromServer};
};

enum class Step { waits, fails, answers };

// Says the secret, and reads the answer.
Step go_on(Attempt& attempt, std::string const& secret, Failure& problem) {
  if (!attempt.greeted) {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      problem.detail = std::strerror(error);
      return Step::fails;
    }
    std::string const hello = wire::encode({wire::Type::hello, 0, {}, secret});
    ssize_t const sent = ::send(attempt.socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    attempt.greeted = sent == static_cast<ssize_t>(hello.size());
    return attempt.greeted ? Step::waits : Step::fails;
  }
  char buffer[256];
  ssize_t const count = ::recv(attempt.socket.get(), buffer, sizeof buffer, 0);
  if (count < 0) {
    if (errno == EAGAIN || errno == EINTR) return Step::waits;
    problem.detail = std::strerror(errno);
    return Step::fails;
  }
  if (count == 0) {
    problem.detail =
        "what listens there closes the connection: another service, or a job with another secret";
    return Step::fails;
  }
  try {
    std::span<char const> bytes(buffer, static_cast<std::size_t>(count));
    auto const frame = attempt.decoder.take(bytes);
    if (!frame) return Step::waits;
    if (frame->type == wire::Type::done) return Step::answers;
    problem.detail = "what listens there is no control server";
  } catch (Error const& error) {
    problem.detail = text("what listens there is no control server of this version: ", error.what());
  }
  return Step::fails;
}

// All addresses at once. Empty if none answers in time.
FileDescriptor try_all(std::span<Address const> addresses, std::string const& secret, Deadline round,
                       PausingDeadline& timeout, Failure& problem) {
  std::vector<Attempt> attempts;
  for (Address const& address : addresses) {
    FileDescriptor socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket &&
        (::connect(socket.get(), reinterpret_cast<sockaddr const*>(&address.bytes), address.length) == 0 ||
         errno == EINPROGRESS)) {
      attempts.push_back({std::move(socket)});
    } else {
      problem.detail = std::strerror(errno);
    }
  }
  while (!attempts.empty() && !round.expired() && !timeout.ended()) {
    std::vector<pollfd> waits;
    for (Attempt const& each : attempts) {
      waits.push_back({each.socket.get(), static_cast<short>(each.greeted ? POLLIN : POLLOUT), 0});
    }
    if (::poll(waits.data(), waits.size(), static_cast<int>(timeout.nap().count())) <= 0) continue;
    for (std::size_t i = waits.size(); i-- > 0;) {
      if (waits[i].revents == 0) continue;
      Step const step = go_on(attempts[i], secret, problem);
      if (step == Step::answers) return std::move(attempts[i].socket);
      if (step == Step::fails) attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  if (!attempts.empty()) {
    bool const hears = std::ranges::any_of(attempts, &Attempt::greeted);
    if (hears) problem.manner = Failure::Manner::stopped;
    problem.detail = hears ? "what listens there does not answer: is its process stopped?"
                           : "no answer: has a host this address, and does a firewall let the port through?";
  }
  return {};
}

}  // namespace

FileDescriptor listen(int port) {
  FileDescriptor socket = listen_at("::", port);
  if (!socket) socket = listen_at("0.0.0.0", port);  // where the kernel has no other
  if (!socket) throw_errno(text("listening at port ", port, port == 0 ? "" : kOtherPort), errno);
  return socket;
}

FileDescriptor listen_here(std::string const& address, int port) {
  FileDescriptor socket = listen_at(address == "localhost" ? "127.0.0.1" : address, port);
  if (!socket) {
    throw_errno(text("listening at ", address, " port ", port, port == 0 ? "" : kOtherPort), errno);
  }
  return socket;
}

int port_of(FileDescriptor const& listening) {
  sockaddr_in6 address{};  // the port is at the same place in both kinds
  socklen_t length = sizeof address;
  if (::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_errno("asking for a socket's port", errno);
  }
  return ntohs(address.sin6_port);
}

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

std::string make_secret() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("making a secret for connections between hosts", errno);
  }
  Classic<std::ostringstream> words;
  for (unsigned const byte : bytes) words << std::hex << (byte >> 4U) << (byte & 0xfU);
  return std::move(words).str();
}

bool is_loopback(std::string const& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

void tune(int socket) noexcept {
  auto const set = [socket](int level, int option, int value) {
    static_cast<void>(::setsockopt(socket, level, option, &value, sizeof value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 2);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15'000);  // while bytes wait for an answer, keep-alive does not look
}

FileDescriptor connect(Place const& place, std::string const& who, Deadline deadline) {
  PausingDeadline timeout(deadline);
  Failure problem{.code = ErrorCode::timeout};
  do {
    problem.manner = Failure::Manner::silent;
    std::vector<Address> addresses;
    for (std::string const& host : place.hosts) {
      auto const more = resolve(host, place.port, timeout, problem);
      addresses.insert(addresses.end(), more.begin(), more.end());
    }
    if (auto socket = try_all(addresses, place.secret, Deadline::after(kRound), timeout, problem)) {
      tune(socket.get());
      return socket;
    }
    std::this_thread::sleep_for(std::min<Deadline::Duration>(kBetweenRounds, timeout.nap()));
  } while (!timeout.ended());
  problem.detail =
      text("connecting to ", who, " timed out after ", seconds(deadline.allowed()), " s: ", problem.detail);
  throw CommError(problem);
}

}  // namespace ddp::tcp

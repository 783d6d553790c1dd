// L14, F19: the control server between an honest rank and three peers that send anything. Input: what the
// peers do, one step after another (see take_step()); the honest rank must be answered whatever that was.
#include "bootstrap/server/control_server.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bootstrap/server/unix_socket.hpp"
#include "bootstrap/wire.hpp"
#include "core/system/file_descriptor.hpp"
#include "fuzz/property.hpp"

namespace {

using namespace ddp;
using fuzz::Input;
using fuzz::must;
using wire::Type;

constexpr int kJobSize = 4;
constexpr Rank kHonest{0};
constexpr std::size_t kPeers = 3;
constexpr int kMostRounds = 10000;

class Server {
 public:
  /// Until it has nothing left to do.
  void run() {
    for (int round = 0; readable(); ++round) {
      must(round < kMostRounds, "the server comes to rest");
      for (ControlServer::Event const& event : server_.process()) {
        must(event.rank.value() >= 0 && event.rank.value() < kJobSize, "events are of ranks of the job");
        must(event.rank != kHonest || event.kind == ControlServer::Event::Kind::joined,
             "nothing befalls the honest rank");
        must(event.failure.detail.size() <= wire::kLongestFailure, "an event's text is bounded");
      }
    }
  }
  void declare_lost(int rank) {
    server_.declare_lost({.code = ErrorCode::peer_lost,
                          .manner = Failure::Manner::exited,
                          .ranks = {Rank{rank}},
                          .detail = "its process ended"});
  }
  [[nodiscard]] std::string const& path() const { return server_.path(); }

 private:
  [[nodiscard]] bool readable() const {
    pollfd entry{server_.poll_fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  }

  // No deadline passes: what a peer does not send, it never sends.
  ControlServer server_{{.size = kJobSize, .frame_deadline = std::chrono::hours(1)}};
};

class Peer {
 public:
  void connect(Server const& server) {
    if (socket_) return;
    socket_ = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    unix_socket::Address const address(server.path());
    must(::connect(socket_.get(), address.get(), address.length) == 0, "the server takes connections");
  }
  void close() {
    socket_.reset();
    decoder_ = wire::Decoder(wire::kFromServer);
  }

  /// As much as the kernel takes: the server may have closed the connection, or not read for a while.
  void send(std::string_view bytes) {
    if (::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(bytes.size())) {
      close();
    }
  }
  void send(Type type, std::uint64_t request, std::string_view key, std::string_view value) {
    send(wire::encode({type, request, std::string(key), std::string(value)}));
  }

  /// Reads everything that has come; the answer to `request`, if it was among that.
  std::optional<wire::Frame> read_until_answered(std::uint64_t request) {
    std::optional<wire::Frame> answer;
    std::array<char, 65536> buffer;
    for (;;) {
      ssize_t const count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count <= 0) return answer;
      std::span<char const> bytes(buffer.data(), static_cast<std::size_t>(count));
      while (auto frame = decoder_.take(bytes)) {
        check(*frame);
        if (frame->request == request && frame->type != Type::lost) answer = std::move(frame);
      }
    }
  }

 private:
  // An exception here is a finding: the server says only what ranks can read.
  static void check(wire::Frame const& frame) {
    must(frame.type == Type::done || frame.type == Type::failed || frame.type == Type::lost,
         "the server sends what is the server's");
    if (frame.type == Type::done) static_cast<void>(wire::decode_values(frame.value));
    if (frame.type == Type::failed) static_cast<void>(wire::decode_failure(frame.value));
    if (frame.type == Type::lost) {
      must(wire::decode_lost(frame.value).ranks.front().value() < kJobSize,
           "ranks that are lost are of the job");
    }
  }

  FileDescriptor socket_;
  wire::Decoder decoder_{wire::kFromServer};
};

wire::Frame answer_to(Peer& rank, Server& server, Type type, std::string_view key, std::string_view value) {
  static std::uint64_t request = 0;
  rank.send(type, ++request, key, value);
  server.run();
  auto const answer = rank.read_until_answered(request);
  must(answer.has_value(), "the honest rank is answered");
  must(answer->type == Type::done, "what the honest rank asks for can be done");
  return *answer;
}

/// A length, most often small.
std::size_t length_from(Input& input) {
  std::size_t const length = input.byte();
  return length < 0xf0 ? length : (length - 0xef) * 1024;
}

/// That many bytes: of the input where it still has some, then filled up.
std::string value_from(Input& input) {
  std::size_t const length = length_from(input);
  std::string value(input.bytes(length));
  value.resize(length, 'v');
  return value;
}

std::string key_from(Input& input) { return std::string(input.bytes(input.byte() % 8)); }

/// A byte that says what is done and by whom, then what that needs.
void take_step(Input& input, Server& server, std::array<Peer, kPeers>& peers) {
  std::uint8_t const step = input.byte();
  Peer& peer = peers[(step >> 4) % kPeers];
  peer.connect(server);
  switch (step & 0xfU) {
    case 0:
      peer.send(value_from(input));
      break;
    case 1: {
      Rank const rank{input.byte() % (kJobSize + 1)};
      peer.send(Type::join, input.byte(), {}, wire::encode_join({rank, kJobSize}));
      break;
    }
    case 2: {
      std::string const key = key_from(input);
      peer.send(Type::put, input.byte(), key, value_from(input));
      break;
    }
    case 3: {
      std::string const key = key_from(input);
      peer.send(Type::get, input.byte(), key, {});
      break;
    }
    case 4: {
      std::string const key = key_from(input);
      std::vector<Rank> group;
      for (std::size_t left = input.byte() % 6; left > 0; --left)
        group.emplace_back(input.byte() % (kJobSize + 1));
      peer.send(Type::gather, input.byte(), key, wire::encode_group(group) + value_from(input));
      break;
    }
    case 5:
      peer.send(Type::withdraw, input.byte(), {}, {});
      break;
    case 6:
      peer.send(Type::leave, input.byte(), {}, {});
      break;
    case 7:  // any frame
    case 8: {
      auto const type = static_cast<Type>(input.byte() % 20);
      std::string const key = key_from(input);
      peer.send(type, input.byte(), key, value_from(input));
      break;
    }
    case 9:
      peer.close();
      break;
    case 10:  // any rank but the honest one, also of another job
      server.declare_lost(1 + input.byte() % (kJobSize + 1));
      break;
    case 11:
      static_cast<void>(peer.read_until_answered(0));
      break;
    default:
      server.run();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  Input input(data, size);
  Server server;
  Peer honest;
  honest.connect(server);
  static_cast<void>(answer_to(honest, server, Type::join, {}, wire::encode_join({kHonest, kJobSize})));
  static_cast<void>(answer_to(honest, server, Type::put, "honest", "word"));
  std::array<Peer, kPeers> peers;
  while (!input.empty()) take_step(input, server, peers);
  auto const values = wire::decode_values(answer_to(honest, server, Type::get, "honest", {}).value);
  must(values == std::vector<std::string>{"word"}, "what the honest rank put is what it gets");
  return 0;
}

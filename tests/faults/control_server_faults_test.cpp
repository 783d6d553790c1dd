// F19: whatever stands in the frames that come through the control socket, it is dropped, honest ranks are
// unaffected, memory is bounded.
#include <gmock/gmock.h>

#include "support/ranks/control_faults.hpp"

// AddressSanitizer keeps freed memory for a while: little of it here, where resident memory is measured.
extern "C" char const* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" char const* __asan_default_options() { return "quarantine_size_mb=4"; }

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using Kind = ControlServer::Event::Kind;

TEST_F(ControlServerFaults, GarbageIsDropped) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    RawSocket socket(server_.path());
    socket.send(random_bytes(4096, seed));
    EXPECT_TRUE(socket.closes_within(kWellAfterIt)) << "seed " << seed;
  }
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, GarbageOfARankThatHasJoinedEndsItAlone) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  socket.send(random_bytes(4096, 1));
  EXPECT_TRUE(socket.closes_within(kWellAfterIt));
  auto const event = server_.find(Kind::disconnected, Rank{2});
  ASSERT_TRUE(event);
  EXPECT_THAT(event->failure.detail, HasSubstr("not a frame of the control plane"));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ARankThatLiesInsideAFrameIsDroppedAndTold) {
  for (auto const& [type, value] : std::vector<std::pair<wire::Type, std::string>>{
           {wire::Type::gather, "\xff\xff\xff\x7f"},  // a group of 2^31 - 1
           {wire::Type::gather, ""},
           {wire::Type::error, "x"},
           {wire::Type::error, "\xff\xff\xff\xff no such code"},
           {wire::Type::lost, "servers only"},
           {wire::Type::join, wire::encode_join({Rank{2}, 3})}}) {
    auto const socket = join_when_possible();
    ASSERT_NE(socket, nullptr);
    socket->send({type, 9, {}, value});
    auto const answer = socket->receive();
    ASSERT_TRUE(answer) << static_cast<int>(type);
    EXPECT_EQ(answer->type, wire::Type::failed);
    EXPECT_EQ(answer->request, 0U);
    EXPECT_TRUE(socket->closes_within(kWellAfterIt));
  }
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, AHalfFrameFollowedBySilenceIsDroppedInTime) {
  std::string const join = wire::encode({wire::Type::join, 1, {}, wire::encode_join({Rank{2}, 3})});
  for (std::size_t const part : {std::size_t{0}, std::size_t{1}, wire::kHeaderSize, join.size() - 1}) {
    RawSocket socket(server_.path());
    auto const start = std::chrono::steady_clock::now();
    socket.send(std::string_view(join).substr(0, part));
    EXPECT_TRUE(socket.closes_within(kWellAfterIt)) << part << " bytes of a join";
    EXPECT_GE(std::chrono::steady_clock::now() - start, kFrameDeadline - milliseconds(50));
  }
  RawSocket socket(server_.path());
  socket.join(2, 3);
  socket.send(wire::encode({wire::Type::put, 2, "key", std::string(1000, 'v')}).substr(0, 500));
  EXPECT_TRUE(socket.closes_within(kWellAfterIt));
  auto const event = server_.find(Kind::disconnected, Rank{2});
  ASSERT_TRUE(event);
  EXPECT_THAT(event->failure.detail, HasSubstr("the rest of a frame did not come within 0.3 s"));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ASlowWriterCannotHoldAFrameOpen) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  std::string const frame = wire::encode({wire::Type::put, 2, "key", std::string(1000, 'v')});
  auto const start = std::chrono::steady_clock::now();
  std::size_t sent = 0;
  while (sent < frame.size() && socket.send(std::string_view(frame).substr(sent, 1)) == 1) {
    ++sent;
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(sent, 500U) << "byte by byte it was to take 10 s";
  EXPECT_LT(std::chrono::steady_clock::now() - start, kWellAfterIt);
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, EachFrameOfALongStreamHasItsOwnTime) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  std::string const frame = wire::encode({wire::Type::withdraw, 1, {}, {}});
  // Every read ends inside a frame, for longer than one frame may take.
  std::string stream = frame.substr(0, 1);
  for (Deadline const deadline = Deadline::after(3 * kFrameDeadline); !deadline.expired();) {
    ASSERT_TRUE(socket.send_all(stream)) << "dropped";
    stream = frame.substr(1) + frame.substr(0, 1);
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_FALSE(socket.closes_within(milliseconds(20)));
  honest_.expect_unaffected();
}

TEST_F(ControlServerFaults, ASilentRankThatHasJoinedIsKept) {
  RawSocket socket(server_.path());
  socket.join(2, 3);
  EXPECT_FALSE(socket.closes_within(3 * kFrameDeadline));
  socket.send({wire::Type::put, 2, "key", "value"});
  auto const answer = socket.receive();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->type, wire::Type::done);
}

TEST_F(ControlServerFaults, AHugeLengthReservesNothing) {
  std::size_t const before = resident_bytes();
  for (auto const& [key, value] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {0xffffffffU, 0}, {0, 0xffffffffU}, {wire::kLongestEnd + 1, 0}, {0, 0x7fffffffU}}) {
    RawSocket stranger(server_.path());
    stranger.send(header_of(wire::Type::join, key, value));
    EXPECT_TRUE(stranger.closes_within(kFrameDeadline - milliseconds(50)))
        << "at once, not when it is overdue";
    RawSocket rank(server_.path());
    rank.join(2, 3);
    rank.send(header_of(wire::Type::put, key, value));
    EXPECT_TRUE(rank.closes_within(kFrameDeadline - milliseconds(50)));
  }
  // As large as is allowed, but only announced.
  RawSocket rank(server_.path());
  rank.join(2, 3);
  rank.send(header_of(wire::Type::put, 3, static_cast<std::uint32_t>(ControlPlane::kMaxValue)));
  honest_.expect_unaffected();
  EXPECT_LT(resident_bytes(), before + (8_MiB).value);
}

}  // namespace
}  // namespace ddp::testing

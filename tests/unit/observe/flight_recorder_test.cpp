#include "observe/flight_recorder.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "comm/communicator_backend.hpp"
#include "core/system/sealed_memory.hpp"
#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::testing {
namespace {

struct Ring {
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(FlightRecorder::memory_bytes() / 8 + 1);
  FlightRecorder recorder{memory.data()};
};

FlightRecorder::Entry numbered(std::uint64_t number, std::uint16_t communicator) {
  FlightRecorder::Entry entry;
  entry.sequence = number;
  entry.count = number * 2;
  entry.communicator = communicator;
  std::strcpy(entry.what.data(), "barrier");
  return entry;
}

TEST(FlightRecorder, KeepsTheLast1024) {
  Ring ring;
  auto const name = ring.recorder.name("world");
  constexpr std::uint64_t kCalls = 3000;
  for (std::uint64_t i = 1; i <= kCalls; ++i) ring.recorder.record(numbered(i, name));
  auto const log = FlightRecorder::read(ring.memory.data());
  ASSERT_TRUE(log);
  EXPECT_EQ(log->recorded, kCalls);
  EXPECT_THAT(log->communicators, ::testing::ElementsAre("world"));
  ASSERT_EQ(log->entries.size(), FlightRecorder::kCapacity);
  for (std::size_t i = 0; i < log->entries.size(); ++i) {
    EXPECT_EQ(log->entries[i].sequence, kCalls - FlightRecorder::kCapacity + 1 + i);
  }
  EXPECT_GT(log->entries[0].time_us, 1'700'000'000'000'000);
}

TEST(FlightRecorder, KeepsTheLastThatWasSaidOfProgress) {
  Ring ring;
  ring.recorder.record(numbered(1, ring.recorder.name("world")));
  EXPECT_EQ(FlightRecorder::read(ring.memory.data())->progress, std::nullopt);
  for (Progress const& said : {Progress{1}, Progress{2, Progress::Pace{3.5, Rank{1}, 0.5}}, Progress{3}}) {
    ring.recorder.say_progress(said);
    EXPECT_EQ(FlightRecorder::read(ring.memory.data())->progress, said);
  }
}

TEST(FlightRecorder, KeepsTheNumberOfStepsExactly) {
  Ring ring;
  ring.recorder.record(numbered(1, ring.recorder.name("world")));
  for (std::uint64_t steps : {1U, 2U, 6U}) ring.recorder.say_steps(steps);
  EXPECT_EQ(FlightRecorder::read(ring.memory.data())->progress, Progress{6});
  ring.recorder.say_progress({7, Progress::Pace{3.5, Rank{1}, 0.5}});
  ring.recorder.say_steps(9);
  EXPECT_EQ(FlightRecorder::read(ring.memory.data())->progress,
            (Progress{9, Progress::Pace{3.5, Rank{1}, 0.5}}));
  EXPECT_EQ(ring.recorder.steps(), 9U);
}

TEST(FlightRecorder, ShowsNoHalfOfWhatIsSaidOfProgress) {
  Ring ring;
  ring.recorder.record(numbered(1, ring.recorder.name("world")));
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 1; !done; i = i % 26 + 1) {
      ring.recorder.say_progress({static_cast<std::uint64_t>(i), Progress::Pace{i * 1.0, Rank{i}, i * 1.0}});
    }
  });
  for (int whole = 0; whole < 1000;) {
    auto const said = FlightRecorder::read(ring.memory.data())->progress;
    if (!said) continue;
    ++whole;
    auto const i = static_cast<int>(said->steps);
    ASSERT_EQ(said->pace, (Progress::Pace{i * 1.0, Rank{i}, i * 1.0}));
  }
  done = true;
  writer.join();
}

TEST(FlightRecorder, IsReadWhileAnotherWritesAndNeverShowsHalfAnEntry) {
  Ring ring;
  auto const name = ring.recorder.name("world");
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !done; ++i) ring.recorder.record(numbered(i, name));
  });
  std::size_t seen = 0;
  while (seen < 100'000) {
    auto const log = FlightRecorder::read(ring.memory.data());
    if (!log) continue;
    for (auto const& entry : log->entries) {
      EXPECT_EQ(entry.count, entry.sequence * 2);
      ++seen;
    }
  }
  done = true;
  writer.join();
}

TEST(FlightRecorder, NonsenseIsNoLog) {
  std::vector<std::uint64_t> const zeros(FlightRecorder::memory_bytes() / 8 + 1);
  EXPECT_FALSE(FlightRecorder::read(zeros.data()));
  std::vector<std::uint64_t> const noise(FlightRecorder::memory_bytes() / 8 + 1, 0x9E3779B97F4A7C15);
  EXPECT_FALSE(FlightRecorder::read(noise.data()));
  Ring ring;  // a ring of ours, then overwritten but for its first word
  ring.recorder.record(numbered(1, ring.recorder.name("world")));
  std::fill(ring.memory.begin() + 1, ring.memory.end(), 0xFFFFFFFFFFFFFFFF);
  EXPECT_FALSE(FlightRecorder::read(ring.memory.data()));
}

TEST(FlightRecorder, LongNamesAreCutAndTooManyShareOne) {
  Ring ring;
  EXPECT_EQ(ring.recorder.name(std::string(100, 'x')), 0);
  for (std::size_t i = 1; i < 2 * FlightRecorder::kMaxNames; ++i) static_cast<void>(ring.recorder.name("n"));
  ring.recorder.record(numbered(1, ring.recorder.name("last")));
  auto const log = FlightRecorder::read(ring.memory.data());
  ASSERT_TRUE(log);
  EXPECT_EQ(log->communicators.size(), FlightRecorder::kMaxNames);
  EXPECT_EQ(log->communicators[0], std::string(FlightRecorder::kMaxName, 'x'));
  EXPECT_EQ(log->communicators[log->entries[0].communicator], FlightRecorder::kFurtherNames);
}

TEST(FlightRecorder, HasWhatIsSplitFromARecordedCommunicator) {
  std::size_t const bytes = FlightRecorder::memory_bytes();
  FileDescriptor const memory = make_sealed_memory("flight", bytes);
  ::setenv("DDP_FLIGHT", text("/proc/self/fd/", memory.get()).c_str(), 1);
  auto const communicator = std::move(make_in_process_communicators(1).front());
  HostStream stream;
  auto const unnamed = communicator->split({{Rank{0}}});
  unnamed->barrier(stream);
  backend_of(*communicator).record_as("world");
  auto const first = communicator->split({{Rank{0}}});
  auto const second = communicator->split({{Rank{0}}});
  second->barrier(stream);
  auto const third = communicator->split({{Rank{0}}}, "evaluation");
  stream.synchronize();
  std::vector<char> copy(bytes);
  ASSERT_EQ(::pread(memory.get(), copy.data(), bytes, 0), static_cast<ssize_t>(bytes));
  auto const log = FlightRecorder::read(copy.data());
  ASSERT_TRUE(log);
  EXPECT_THAT(log->communicators, ::testing::ElementsAre("world", "world, split 2 with rank 0",
                                                         "world, split 3 with rank 0", "evaluation"));
  ASSERT_EQ(log->entries.size(), 1U);
  EXPECT_EQ(log->communicators[log->entries[0].communicator], "world, split 3 with rank 0");
}

TEST(FlightRecorder, DescribesAnOperationAsMessagesDo) {
  FlightRecorder::Entry entry = numbered(7, 0);
  EXPECT_EQ(describe(entry), "barrier");
  std::strcpy(entry.what.data(), "reduce");
  std::strcpy(entry.reduction.data(), "max");
  entry.peer = 3;
  EXPECT_EQ(describe(entry), "reduce (max) to rank 3 of u8[14]");
}

}  // namespace
}  // namespace ddp::testing

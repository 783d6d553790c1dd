#include <gmock/gmock.h>

#include <optional>

#include "ddp/core/text.hpp"
#include "ddp/device/event.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/devices/gate.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

// One rank's stream has not got to the operation; in the second round a caller that says that it waits next
// has left the worker asleep.
void a_split_waits_for_operations_on_a_stream(ContractContext& context) {
  Communicator& comm = context.comm;
  for (bool const expects_wait : {false, true}) {
    auto const stream = context.side_stream();
    Elements<double> const values(comm, 3, 1.0);
    static_cast<void>(values.put(*stream));
    stream->synchronize();
    if (expects_wait) stream->expect_wait();
    std::optional<Gate> gate;
    if (comm.rank() == 0) gate.emplace(*stream);
    comm.all_reduce(values.view(), ReduceOp::sum(), *stream);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (gate) gate->open();
    });
    Tensor const memory = comm.allocate(Bytes{8});
    EXPECT_FALSE(gate && gate->holds());
    auto const child = comm.split(all_ranks(comm.size()));
    opener.join();
    EXPECT_EQ(values.fetch(*stream)[0], comm.size());
    EXPECT_EQ(memory.view().count(), 8U);
    child->all_reduce(values.view(), ReduceOp::sum(), *stream);
    EXPECT_EQ(values.fetch(*stream)[0], comm.size() * comm.size());
  }
}

// Such work of one rank makes no rank throw. On a CPU the gate stays shut until all is done; a GPU may take
// some of what is behind an operation for a part of it.
void a_split_does_not_wait_for_other_work(ContractContext& context) {
  Communicator& comm = context.comm;
  bool const on_gpu = comm.device().kind == DeviceKind::cuda;
  auto const stream = context.side_stream();
  Elements<double> const values(comm, 3, 1.0);
  comm.all_reduce(values.put(*stream), ReduceOp::sum(), *stream);
  std::optional<Gate> gate;
  if (comm.rank() == 0) gate.emplace(*stream);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (gate && on_gpu) gate->open();
  });
  Tensor const memory = comm.allocate(Bytes{8});
  auto const child = comm.split(all_ranks(comm.size()));
  opener.join();
  EXPECT_TRUE(!gate || on_gpu || gate->holds()) << "it waited for what is behind the operation";
  if (gate) gate->open();
  EXPECT_EQ(values.fetch(*stream)[0], comm.size());
  EXPECT_EQ(child->size(), comm.size());
}

// Operations behind work that failed never run.
void a_split_behind_work_that_failed_throws_it(ContractContext& context) {
  if (context.comm.device().kind == DeviceKind::cuda) return;
  auto const comm = context.make(std::chrono::milliseconds(500));
  auto const stream = context.side_stream();
  Elements<double> const values(*comm, 3, 1.0);
  if (comm->rank() == 0) {
    host_stream(*stream).enqueue([] { throw Error(ErrorCode::device, "the disk is full"); });
  }
  auto const error = error_of<Error>([&] {
    comm->all_reduce(values.view(), ReduceOp::sum(), *stream);  // of the others, rank 0 may have ended it
    static_cast<void>(comm->split(all_ranks(comm->size())));
  });
  if (comm->rank() == 0) {
    EXPECT_THAT(error.what(), HasSubstr("the disk is full"));
  }
  try {
    stream->synchronize();
  } catch (Error const&) {  // unless nothing was enqueued
  }
}

// Every rank waits for its own stream, so that no operation of any has a deadline yet.
void a_split_gives_up_at_the_deadline(ContractContext& context) {
  if (context.comm.device().kind == DeviceKind::cuda || context.comm.size() == 1) return;
  auto const comm = context.make(std::chrono::milliseconds(100));
  auto const stream = context.side_stream();
  Elements<double> const values(*comm, 3, 1.0);
  Gate gate(*stream);
  comm->all_reduce(values.view(), ReduceOp::sum(), *stream);
  auto const error = error_of<CommError>([&] { static_cast<void>(comm->split(all_ranks(comm->size()))); });
  EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("split: waited 0.1 s for operations of this communicator"));
  gate.open();
  static_cast<void>(failure_of<Error>(*stream, [] {}));
}

void many_operations_are_in_flight(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  std::size_t const operations = 500;
  std::vector<Elements<float>> values;
  for (std::size_t i = 0; i < operations; ++i) {
    values.emplace_back(comm, i * 7 % 900, static_cast<float>(i));
    static_cast<void>(values.back().put(*stream));
  }
  for (auto const& each : values) comm.all_reduce(each.view(), ReduceOp::sum(), *stream);
  for (std::size_t i = 0; i < operations; ++i) {
    expect_elements<float>(
        values[i].fetch(*stream),
        [&](std::size_t) { return static_cast<float>(i) * static_cast<float>(comm.size()); },
        text("operation ", i));
  }
}

// An operation is ordered behind the work before it and before the work behind it, on its stream.
void operations_are_ordered_on_their_stream(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  std::size_t const size = 40'000;
  std::size_t const rounds = 20;
  Elements<double> const values(comm, size);
  Elements<double> const seen(comm, rounds);
  std::vector<Elements<double>> inputs;
  for (std::size_t round = 0; round < rounds; ++round) {
    inputs.emplace_back(comm, size, static_cast<double>(round + 1));
    static_cast<void>(inputs.back().put(*stream));
  }
  for (std::size_t round = 0; round < rounds; ++round) {
    copy_elements(values.view(), inputs[round].view(), *stream);
    comm.all_reduce(values.view(), ReduceOp::sum(), *stream);
    copy_elements(seen.part(round, 1), values.part(size - 1, 1), *stream);
  }
  expect_elements<double>(
      seen.fetch(*stream), [&](std::size_t round) { return static_cast<double>(round + 1) * comm.size(); },
      "round");
}

// What waits for the stream of an all-reduce waits for the all-reduce, not for the call: the host goes on at
// once, and an event recorded behind it is not reached while a rank is missing. The last rank comes late.
void who_waits_for_the_stream_waits_for_the_operation(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const reducing = context.side_stream();
  auto const reading = context.side_stream();
  Bytes const bytes = comm.device().kind == DeviceKind::cuda ? 256_MiB : 8_MiB;
  std::size_t const size = bytes.value / sizeof(float);
  bool const late = comm.rank().value() == comm.size() - 1;
  constexpr std::chrono::milliseconds kLate{400};
  Elements<float> const values(comm, size);
  Tensor const last = pinned_zeros(Shape{1}, DType::f32);
  for (int round = 0; round < 2; ++round) {  // the first one lets the backend connect ranks and load kernels
    std::fill(values.host().begin(), values.host().end(), static_cast<float>(comm.rank().value() + 1));
    static_cast<void>(values.put(*reducing));
    reducing->synchronize();
    auto const begin = std::chrono::steady_clock::now();  // before any rank leaves the barrier
    comm.barrier(*reducing);
    reducing->synchronize();
    if (late) std::this_thread::sleep_for(kLate);
    Event done(comm.device());
    comm.all_reduce(values.view(), ReduceOp::sum(), *reducing);
    reading->wait(*reducing);
    copy_elements(last, values.part(size - 1, 1), *reading);
    done.record(*reading);
    bool const reached_at_once = done.reached();
    auto const enqueued = std::chrono::steady_clock::now() - begin;
    reading->synchronize();
    auto const took = std::chrono::steady_clock::now() - begin;
    EXPECT_TRUE(done.reached());
    EXPECT_EQ(last.as<float>()[0], static_cast<float>(comm.size() * (comm.size() + 1)) / 2.0F);
    if (late || round == 0) continue;
    EXPECT_LT(enqueued, kLate) << "the host waited for the other ranks";
    EXPECT_FALSE(reached_at_once) << "an event behind the all-reduce was reached before the last rank came";
    EXPECT_GE(took, kLate);
  }
}

// Operations of two communicators on two streams: neither waits for the other, nor is harmed by its end.
void two_communicators_work_on_two_streams(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const other = context.make(std::chrono::seconds(60));
  auto const first_stream = context.side_stream();
  auto const second_stream = context.side_stream();
  Elements<double> const first(comm, 200'003, 1.0);
  Elements<float> const second(comm, 50'021, 1.0F);
  static_cast<void>(first.put(*first_stream));
  static_cast<void>(second.put(*second_stream));
  int const rounds = 10;
  for (int round = 0; round < rounds; ++round) {
    comm.all_reduce(first.view(), ReduceOp::average(), *first_stream);
    other->all_reduce(second.view(), ReduceOp::max(), *second_stream);
    comm.all_reduce(first.view(), ReduceOp::sum(), *first_stream);
  }
  EXPECT_EQ(second.fetch(*second_stream)[50'020], 1.0F);
  EXPECT_NEAR(first.fetch(*first_stream)[200'002], std::pow(comm.size(), rounds), 1e-6);
  comm.barrier(*first_stream);  // every rank is done with the other one
  first_stream->synchronize();
  other->abort("enough of this one");
  comm.all_reduce(second.view(), ReduceOp::sum(), *first_stream);
  EXPECT_EQ(second.fetch(*first_stream)[0], static_cast<float>(comm.size()));
  comm.check_health();
}

void no_rank_leaves_a_barrier_early(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const pass = [&] {
    comm.barrier(*stream);
    stream->synchronize();
  };
  // Every rank counts its arrivals in memory that all can read through all_gather after the barrier.
  for (std::int32_t round = 0; round < 50; ++round) {
    pass();
    Elements<std::int32_t> const mine(comm, 1, round);
    Elements<std::int32_t> const rounds(comm, static_cast<std::size_t>(comm.size()));
    comm.all_gather(mine.put(*stream), rounds.view(), *stream);
    for (std::int32_t const other : rounds.fetch(*stream)) ASSERT_EQ(other, round);
  }
  auto const before = std::chrono::steady_clock::now();
  if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  pass();
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(comm.size() > 1 ? 100 : 0));
}

}  // namespace

std::vector<ContractCase> stream_cases() {
  return {{"ASplitWaitsForOperationsOnAStream", &a_split_waits_for_operations_on_a_stream},
          {"ASplitDoesNotWaitForOtherWork", &a_split_does_not_wait_for_other_work},
          {"ASplitBehindWorkThatFailedThrowsIt", &a_split_behind_work_that_failed_throws_it},
          {"ASplitGivesUpAtTheDeadline", &a_split_gives_up_at_the_deadline},
          {"ManyOperationsAreInFlight", &many_operations_are_in_flight},
          {"OperationsAreOrderedOnTheirStream", &operations_are_ordered_on_their_stream},
          {"WhoWaitsForTheStreamWaitsForTheOperation", &who_waits_for_the_stream_waits_for_the_operation},
          {"TwoCommunicatorsWorkOnTwoStreams", &two_communicators_work_on_two_streams},
          {"NoRankLeavesABarrierEarly", &no_rank_leaves_a_barrier_early}};
}

}  // namespace ddp::testing

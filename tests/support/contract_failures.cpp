#include <gmock/gmock.h>

#include <thread>

#include "support/communicator_contract.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

template <class Call>
void expect_refused(Call call, char const* part_of_message) {
  try {
    call();
    ADD_FAILURE() << "accepted, expected a message with: " << part_of_message;
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part_of_message));
  }
}

void wrong_arguments_are_refused_and_harm_nothing(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::vector<float> a(10);
  std::vector<float> b(11);
  std::vector<double> wide(10);
  std::vector<std::int32_t> whole(10);
  auto const f = view_of(std::span(a));
  Rank const outside{comm.size()};
  expect_refused([&] { comm.all_reduce(f, view_of(std::span(b)), ReduceOp::sum(), *stream); }, "11");
  expect_refused([&] { comm.all_reduce(f, view_of(std::span(wide)), ReduceOp::sum(), *stream); }, "f64");
  expect_refused([&] { comm.all_reduce(view_of(std::span(whole)), ReduceOp::average(), *stream); },
                 "average");
  double const factor = 2;
  expect_refused([&] { comm.all_reduce(view_of(std::span(whole)), ReduceOp::scaled_sum(factor), *stream); },
                 "factor");
  expect_refused([&] { comm.broadcast(f, outside, *stream); }, "root");
  expect_refused([&] { comm.broadcast(f, Rank{-1}, *stream); }, "root");
  expect_refused([&] { comm.send(f, outside, *stream); }, "peer");
  expect_refused([&] { comm.send(f, comm.rank(), *stream); }, "group");
  expect_refused([&] { comm.recv(f, comm.rank(), *stream); }, "group");
  expect_refused([&] { comm.all_reduce(slice(f, 0, 6), slice(f, 3, 6), ReduceOp::sum(), *stream); },
                 "overlap");
  expect_refused(
      [&] {
        comm.all_reduce(TensorView{nullptr, Shape{3}, DType::f32, {}}, ReduceOp::sum(), *stream);
      },
      "null");
  expect_refused(
      [&] {
        TensorView elsewhere = f;
        elsewhere.device = Device{DeviceKind::cuda, DeviceIndex{0}};
        comm.all_reduce(elsewhere, ReduceOp::sum(), *stream);
      },
      "cuda:0");
  expect_refused(
      [&] {
        TensorView odd = slice(f, 0, 5);
        odd.data = static_cast<std::byte*>(odd.data) + 1;
        comm.all_reduce(odd, ReduceOp::sum(), *stream);
      },
      "aligned");
  if (comm.size() > 1) {
    expect_refused([&] { comm.all_gather(f, view_of(std::span(b)), *stream); }, "ratio");
    std::vector<float> uneven(static_cast<std::size_t>(comm.size()) + 1);
    std::vector<float> other(uneven.size());
    expect_refused([&] { comm.all_to_all(view_of(std::span(uneven)), view_of(std::span(other)), *stream); },
                   "divide");
  }
  comm.check_health();
  std::vector<float> ones(10, 1.0F);
  comm.all_reduce(view_of(std::span(ones)), ReduceOp::sum(), *stream);
  EXPECT_EQ(ones[9], static_cast<float>(comm.size()));
}

// F7: every rank gets the same error, at once, though the deadline is far.
void operations_that_differ_are_an_error_on_every_rank(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const stream = HostStream::inline_stream();
  std::vector<float> values(1000, 1.0F);
  std::vector<double> wide(1000, 1.0);
  auto const f = view_of(std::span(values));
  using Call = std::function<void(Communicator&)>;
  struct Difference {
    Call usual;
    Call odd;
    char const* expected;
    char const* found;
  };
  Difference const differences[] = {
      {[&](Communicator& c) { c.all_reduce(f, ReduceOp::sum(), *stream); },
       [&](Communicator& c) { c.all_reduce(slice(f, 0, 999), ReduceOp::sum(), *stream); }, "f32[1000]",
       "f32[999]"},
      {[&](Communicator& c) { c.all_reduce(f, ReduceOp::sum(), *stream); },
       [&](Communicator& c) { c.all_reduce(view_of(std::span(wide)), ReduceOp::sum(), *stream); },
       "f32[1000]", "f64[1000]"},
      {[&](Communicator& c) { c.all_reduce(f, ReduceOp::sum(), *stream); },
       [&](Communicator& c) { c.all_reduce(f, ReduceOp::max(), *stream); }, "sum", "max"},
      {[&](Communicator& c) { c.broadcast(f, Rank{0}, *stream); },
       [&](Communicator& c) { c.broadcast(f, Rank{1}, *stream); }, "from rank 0", "from rank 1"},
      {[&](Communicator& c) { c.all_reduce(f, ReduceOp::sum(), *stream); },
       [&](Communicator& c) { c.barrier(*stream); }, "all_reduce", "barrier"},
      {[&](Communicator& c) { c.broadcast(f, Rank{0}, *stream); },
       [&](Communicator& c) { c.broadcast(slice(f, 0, 0), Rank{0}, *stream); }, "f32[1000]", "f32[0]"}};
  for (Difference const& difference : differences) {
    auto const child = context.make(std::chrono::minutes(5));
    auto const error =
        error_of<CommError>([&] { (child->rank() == 1 ? difference.odd : difference.usual)(*child); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr(text("rank 0 called ")));
    EXPECT_THAT(error.what(), HasSubstr(text("rank 1 called ")));
    EXPECT_THAT(error.what(), HasSubstr(difference.expected));
    EXPECT_THAT(error.what(), HasSubstr(difference.found));
    EXPECT_THROW(child->check_health(), CommError);
    EXPECT_THROW(child->barrier(*stream), CommError) << "a failed communicator must stay unusable";
  }
}

void a_recv_of_another_count_is_an_error(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const child = context.make(std::chrono::minutes(5));
  auto const stream = HostStream::inline_stream();
  std::vector<float> values(100'000);
  if (child->rank() == 0) {
    // More than the rings hold: the sender waits for a receiver that has failed.
    auto const error =
        error_of<CommError>([&] { child->send(view_of(std::span(values)), Rank{1}, *stream); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
  } else if (child->rank() == 1) {
    auto const error =
        error_of<CommError>([&] { child->recv(view_of(std::span(values).first(10)), Rank{0}, *stream); });
    EXPECT_THAT(error.what(), HasSubstr("f32[10] from rank 0"));
    EXPECT_THAT(error.what(), HasSubstr("f32[100000]"));
  }
}

void a_deadline_names_the_operation_and_the_missing_ranks(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const child = context.make(std::chrono::milliseconds(300));
  auto const stream = HostStream::inline_stream();
  std::vector<float> values(1000, 1.0F);
  auto const last = Rank{child->size() - 1};
  if (child->rank() != last) {
    auto const error =
        error_of<CommError>([&] { child->all_reduce(view_of(std::span(values)), ReduceOp::sum(), *stream); });
    EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("all_reduce (sum) of f32[1000]"));
    EXPECT_THAT(error.what(), HasSubstr(text("for rank ", last)));
    EXPECT_THAT(error.what(), HasSubstr("0.3 s"));
  }
  auto const stream_of_all = HostStream::inline_stream();
  context.comm.barrier(*stream_of_all);  // the late rank comes when it is over
  auto const error = error_of<CommError>([&] { child->barrier(*stream); });
  EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
}

void a_recv_that_nobody_answers_meets_its_deadline(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const child = context.make(std::chrono::milliseconds(300));
  auto const stream = HostStream::inline_stream();
  float value = 0;
  if (child->rank() == 0) {
    auto const error =
        error_of<CommError>([&] { child->recv(view_of(std::span(&value, 1)), Rank{1}, *stream); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("recv from rank 1 of f32[1]"));
  }
  context.comm.barrier(*stream);
}

void abort_ends_what_others_wait_for(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const child = context.make(std::chrono::minutes(5));
  HostStream stream;
  std::vector<double> values(100);
  if (child->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    child->abort("the user pressed stop");
    auto const error = error_of<CommError>([&] { child->check_health(); });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
  } else {
    child->all_reduce(view_of(std::span(values)), ReduceOp::sum(), stream);
    auto const error = error_of<CommError>([&] { stream.synchronize(); });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.what(), HasSubstr("the user pressed stop"));
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
  }
}

// A rank that fails frees its memory: nobody may read or write it any more.
void abort_in_the_middle_of_a_large_all_reduce_is_safe(ContractContext& context) {
  if (context.comm.size() < 2) return;
  for (int round = 0; round < 4; ++round) {
    auto const child = context.make(std::chrono::minutes(5));
    auto const stream = HostStream::inline_stream();
    std::thread aborter;
    if (child->rank() == 0) {
      aborter = std::thread([&child, round] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2 + 3 * round));
        child->abort("enough");
      });
    }
    auto const error = error_of<CommError>([&] {
      for (;;) {
        std::vector<double> values(std::size_t{1} << 20, 1.0);
        child->all_reduce(view_of(std::span(values)), ReduceOp::sum(), *stream);
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    if (aborter.joinable()) aborter.join();
    context.comm.barrier(*stream);
  }
}

// One deadline for the whole operation, however many ranks come late one after another.
void deadlines_of_several_peers_do_not_add_up(ContractContext& context) {
  if (context.comm.size() < 3) return;
  auto const child = context.make(std::chrono::milliseconds(400));
  auto const stream = HostStream::inline_stream();
  // Rank 1 comes after 0.3 s, the last rank never.
  auto const begin = std::chrono::steady_clock::now();
  if (child->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (child->rank() == 0) {
    static_cast<void>(error_of<CommError>([&] { child->barrier(*stream); }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(650));
  } else if (child->rank() == 1) {
    static_cast<void>(error_of<CommError>([&] { child->barrier(*stream); }));
  }
  context.comm.barrier(*stream);
}

void an_allocation_that_differs_is_an_error(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const bytes = Bytes{context.comm.rank() == 0 ? std::size_t{4096} : std::size_t{8192}};
  expect_refused([&] { static_cast<void>(context.comm.allocate(bytes)); }, "rank 1 for 8192");
  auto const stream = HostStream::inline_stream();
  context.comm.barrier(*stream);
}

void an_impossible_allocation_is_out_of_memory_on_every_rank(ContractContext& context) {
  try {
    static_cast<void>(context.comm.allocate(Bytes{std::size_t{1} << 60}));
    ADD_FAILURE() << "allocated an EiB";
  } catch (Error const& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
  }
  auto const stream = HostStream::inline_stream();
  context.comm.barrier(*stream);
}

}  // namespace

std::vector<ContractCase> failure_cases() {
  return {
      {"WrongArgumentsAreRefusedAndHarmNothing", &wrong_arguments_are_refused_and_harm_nothing},
      {"OperationsThatDifferAreAnErrorOnEveryRank", &operations_that_differ_are_an_error_on_every_rank},
      {"ARecvOfAnotherCountIsAnError", &a_recv_of_another_count_is_an_error},
      {"ADeadlineNamesTheOperationAndTheMissingRanks", &a_deadline_names_the_operation_and_the_missing_ranks},
      {"ARecvThatNobodyAnswersMeetsItsDeadline", &a_recv_that_nobody_answers_meets_its_deadline},
      {"AbortEndsWhatOthersWaitFor", &abort_ends_what_others_wait_for},
      {"AbortInTheMiddleOfALargeAllReduceIsSafe", &abort_in_the_middle_of_a_large_all_reduce_is_safe},
      {"DeadlinesOfSeveralPeersDoNotAddUp", &deadlines_of_several_peers_do_not_add_up},
      {"AnAllocationThatDiffersIsAnError", &an_allocation_that_differs_is_an_error},
      {"AnImpossibleAllocationIsOutOfMemoryOnEveryRank",
       &an_impossible_allocation_is_out_of_memory_on_every_rank}};
}

}  // namespace ddp::testing

#include <gmock/gmock.h>

#include <thread>

#include "comm/communicator_backend.hpp"
#include "ddp/core/failure.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
void expect_refused(Call call, char const* part_of_message) {
  auto const error = error_of(call);
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(part_of_message));
}

void pass_barrier(ContractContext& context) {
  auto const stream = context.stream();
  context.comm.barrier(*stream);
  stream->synchronize();
}

void wrong_arguments_are_refused_and_harm_nothing(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  Elements<float> const a(comm, 10);
  Elements<float> const b(comm, 11);
  Elements<double> const wide(comm, 10);
  Elements<std::int32_t> const whole(comm, 10);
  auto const f = a.view();
  Rank const outside{comm.size()};
  Factor const factor(comm, 2, *stream);
  expect_refused([&] { comm.all_reduce(f, b.view(), ReduceOp::sum(), *stream); }, "11");
  expect_refused([&] { comm.all_reduce(f, wide.view(), ReduceOp::sum(), *stream); }, "f64");
  expect_refused([&] { comm.all_reduce(whole.view(), ReduceOp::average(), *stream); }, "average");
  expect_refused([&] { comm.all_reduce(whole.view(), factor.scaled_sum(), *stream); }, "factor");
  expect_refused([&] { comm.broadcast(f, outside, *stream); }, "root");
  expect_refused([&] { comm.broadcast(f, Rank{-1}, *stream); }, "root");
  expect_refused([&] { comm.all_reduce(slice(f, 0, 6), slice(f, 3, 6), ReduceOp::sum(), *stream); },
                 "overlap");
  expect_refused(
      [&] {
        comm.all_reduce(TensorView{nullptr, Shape{3}, DType::f32, comm.device()}, ReduceOp::sum(), *stream);
      },
      "null");
  Device const elsewhere{DeviceKind::cuda, DeviceIndex{comm.device().index.value() + 1}};
  expect_refused(
      [&] {
        TensorView there = f;
        there.device = elsewhere;
        comm.all_reduce(there, ReduceOp::sum(), *stream);
      },
      to_string(elsewhere).c_str());
  expect_refused(
      [&] {
        TensorView odd = slice(f, 0, 5);
        odd.data = static_cast<std::byte*>(odd.data) + 1;
        comm.all_reduce(odd, ReduceOp::sum(), *stream);
      },
      "aligned");
  if (comm.size() > 1) {
    expect_refused([&] { comm.all_gather(f, b.view(), *stream); }, "ratio");
    Elements<float> const uneven(comm, static_cast<std::size_t>(comm.size()) + 1);
    Elements<float> const other(comm, uneven.view().count());
    expect_refused([&] { comm.all_to_all(uneven.view(), other.view(), *stream); }, "divide");
  }
  auto const ranks = static_cast<std::size_t>(comm.size());
  Elements<std::int16_t> const narrow(comm, ranks);
  for (DType const dtype : {DType::i8, DType::i16, DType::boolean}) {
    TensorView const view{narrow.view().data, Shape{ranks}, dtype, comm.device()};
    std::string const what =
        text(" of ", dtype, dtype == DType::boolean ? "; view it as u8" : "; convert it");
    auto const refusal = [&](char const* of) { return text(of, what); };
    expect_refused([&] { comm.all_reduce(view, ReduceOp::sum(), *stream); },
                   refusal("all_reduce: there is no sum").c_str());
    expect_refused([&] { comm.reduce(view, view, ReduceOp::average(), Rank{0}, *stream); },
                   refusal("reduce: there is no average").c_str());
    expect_refused(
        [&] { comm.reduce_scatter(view, slice(view, comm.rank().index(), 1), ReduceOp::max(), *stream); },
        refusal("reduce_scatter: there is no max").c_str());
  }
  comm.check_health();
  Elements<float> const ones(comm, 10, 1.0F);
  comm.all_reduce(ones.put(*stream), ReduceOp::sum(), *stream);
  EXPECT_EQ(ones.fetch(*stream)[9], static_cast<float>(comm.size()));
}

// F7: every rank gets the same error, at once, though the deadline is far.
void operations_that_differ_are_an_error_on_every_rank(ContractContext& context) {
  if (context.comm.size() < 2) return;
  Elements<float> const values(context.comm, 1000, 1.0F);
  Elements<double> const wide(context.comm, 1000, 1.0);
  auto const f = values.view();
  using Call = std::function<void(Communicator&, Stream&)>;
  struct Difference {
    Call usual;
    Call odd;
    char const* expected;
    char const* found;
  };
  Difference const differences[] = {
      {[&](Communicator& c, Stream& s) { c.all_reduce(f, ReduceOp::sum(), s); },
       [&](Communicator& c, Stream& s) { c.all_reduce(slice(f, 0, 999), ReduceOp::sum(), s); }, "f32[1000]",
       "f32[999]"},
      {[&](Communicator& c, Stream& s) { c.all_reduce(f, ReduceOp::sum(), s); },
       [&](Communicator& c, Stream& s) { c.all_reduce(wide.view(), ReduceOp::sum(), s); }, "f32[1000]",
       "f64[1000]"},
      {[&](Communicator& c, Stream& s) { c.all_reduce(f, ReduceOp::sum(), s); },
       [&](Communicator& c, Stream& s) { c.all_reduce(f, ReduceOp::max(), s); }, "sum", "max"},
      {[&](Communicator& c, Stream& s) { c.broadcast(f, Rank{0}, s); },
       [&](Communicator& c, Stream& s) { c.broadcast(f, Rank{1}, s); }, "from rank 0", "from rank 1"},
      {[&](Communicator& c, Stream& s) { c.all_reduce(f, ReduceOp::sum(), s); },
       [&](Communicator& c, Stream& s) { c.barrier(s); }, "all_reduce", "barrier"},
      {[&](Communicator& c, Stream& s) { c.broadcast(f, Rank{0}, s); },
       [&](Communicator& c, Stream& s) { c.broadcast(slice(f, 0, 0), Rank{0}, s); }, "f32[1000]", "f32[0]"}};
  for (Difference const& difference : differences) {
    auto const child = context.make_patient();
    auto const stream = context.stream();
    auto const error = context.difference_of(
        *child, *stream, [&] { (child->rank() == 1 ? difference.odd : difference.usual)(*child, *stream); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_EQ(error.failure().manner, Failure::Manner::differs);
    EXPECT_THAT(error.failure().ranks, ElementsAre(Rank{0}, Rank{1}));
    EXPECT_THAT(error.what(), HasSubstr(text("rank 0 called ")));
    EXPECT_THAT(error.what(), HasSubstr(text("rank 1 called ")));
    EXPECT_THAT(error.what(), HasSubstr(difference.expected));
    EXPECT_THAT(error.what(), HasSubstr(difference.found));
    EXPECT_THROW(child->check_health(), CommError);
    auto const later = context.stream();
    EXPECT_EQ(failure_of(*later, [&] { child->barrier(*later); }).code(), ErrorCode::mismatch)
        << "a failed communicator must stay unusable";
  }
}

// A rank that has a weight in the step where others have none; ranks in different steps.
void steps_that_begin_differently_are_an_error_in_terms_of_steps(ContractContext& context) {
  if (context.comm.size() < 2) return;
  Elements<double> const values(context.comm, 4, 1.0);
  for (bool const other_step : {false, true}) {
    auto const child = context.make_patient();
    auto const stream = context.stream();
    bool const odd = child->rank() == 1;
    backend_of(*child).begin_step(7, true);
    child->all_reduce(values.view(), ReduceOp::sum(), *stream);
    child->all_reduce(values.view(), ReduceOp::sum(), *stream);  // of the same step
    stream->synchronize();
    backend_of(*child).settle_step();
    pass_barrier(context);  // the failure of a rank that is ahead would end this step too
    backend_of(*child).begin_step(other_step && odd ? 9 : 8, other_step || odd);
    auto const error = context.difference_of(*child, *stream, [&] {
      child->all_reduce(values.view(), ReduceOp::sum(), *stream);
      backend_of(*child).settle_step();
    });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.what(), HasSubstr(other_step ? "rank 0 is in synchronised step 8, rank 1 in 9"
                                                   : "called on rank 1 and not on rank 0 in step 8"));
  }
}

// A rank whose program has not done before a step what others have; the last rank does not know. Between
// hosts NCCL's ranks tell each other in a step's head only.
void steps_of_ranks_at_different_places_of_their_loops_are_an_error(ContractContext& context) {
  if (context.comm.size() < 2) return;
  Elements<double> const values(context.comm, 4, 1.0);
  for (bool const changes : {false, true}) {
    auto const child = context.make_patient();
    auto const stream = context.stream();
    auto const begin = [&](std::uint64_t step, SinceLastStep since) {
      backend_of(*child).begin_step(step, false, child->rank().value() == 2 ? SinceLastStep{} : since);
      child->all_reduce(values.view(), ReduceOp::sum(), *stream);
      backend_of(*child).settle_step();
    };
    if (child->backend() == "nccl" && !backend_of(*child).sees_calls()) return;
    begin(7, SinceLastStep::of(true, true));
    begin(8, SinceLastStep::of(false, true));
    begin(9, {});
    stream->synchronize();
    pass_barrier(context);
    bool const odd = child->rank() == 1;
    auto const error =
        failure_of(*stream, [&] { begin(10, SinceLastStep::of(!changes || !odd, changes || !odd)); });
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.failure().ranks, ElementsAre(Rank{1}));
    EXPECT_THAT(error.what(), HasSubstr(changes ? "step 10: before it rank 1 changed no parameter"
                                                : "step 10: before it rank 1 cleared no gradient"));
    EXPECT_THAT(error.what(), HasSubstr("rank 0 did"));
  }
}

// Also where operations are so large that backends cut them into pieces.
void large_operations_that_differ_are_named_as_a_whole(ContractContext& context) {
  if (context.comm.size() < 2) return;
  std::size_t const size = 3'000'000;
  Elements<float> const values(context.comm, size, 1.0F);
  auto const child = context.make_patient();
  auto const stream = context.stream();
  std::size_t const mine = child->rank() == 1 ? size - 1 : size;
  auto const error = context.difference_of(
      *child, *stream, [&] { child->all_reduce(values.part(0, mine), ReduceOp::sum(), *stream); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("f32[3000000]"));
  EXPECT_THAT(error.what(), HasSubstr("f32[2999999]"));
}

void a_deadline_names_the_operation_and_the_missing_ranks(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const child = context.make(std::chrono::milliseconds(300));
  Elements<float> const values(*child, 1000, 1.0F);
  auto const last = Rank{child->size() - 1};
  if (child->rank() != last) {
    auto const stream = context.stream();
    auto const error =
        failure_of(*stream, [&] { child->all_reduce(values.view(), ReduceOp::sum(), *stream); });
    EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
    Failure const& failure = error.failure();
    EXPECT_EQ(failure.manner, Failure::Manner::silent);
    EXPECT_THAT(failure.ranks, ElementsAre(last));
    EXPECT_THAT(failure.operation, HasSubstr("all_reduce (sum) of f32[1000]"));
    EXPECT_EQ(failure.waited, std::chrono::milliseconds(300));
    EXPECT_EQ(failure.ended_by.has_value(), error.code() == ErrorCode::aborted);
    EXPECT_THAT(error.what(), HasSubstr("or raise CommunicatorOptions::timeout"));
  }
  pass_barrier(context);  // the late rank comes when it is over
  auto const stream = context.stream();
  auto const error = failure_of(*stream, [&] { child->barrier(*stream); });
  EXPECT_TRUE(error.code() == ErrorCode::timeout || error.code() == ErrorCode::aborted) << error.what();
}

void abort_ends_what_others_wait_for(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const child = context.make(std::chrono::minutes(5));
  auto const stream = context.side_stream();
  pass_barrier(context);  // every rank has it, not only this one
  Elements<double> const values(*child, 100);
  if (child->rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    child->abort("the user pressed stop");
    auto const error = error_of<CommError>([&] { child->check_health(); });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
  } else {
    auto const error =
        failure_of(*stream, [&] { child->all_reduce(values.view(), ReduceOp::sum(), *stream); });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_EQ(error.failure().detail, "the user pressed stop");
    EXPECT_EQ(error.failure().ended_by, Rank{0});
  }
}

// Though the stream has waited for what failed.
void a_stream_works_on_when_a_failed_communicator_is_gone(ContractContext& context) {
  auto const stream = context.stream();
  for (int round = 0; round < 3; ++round) {
    auto child = context.make(std::chrono::minutes(5));
    pass_barrier(context);
    Elements<float> const values(*child, 1000, 1.0F);
    auto const error = failure_of(*stream, [&] {
      if (child->rank() == 0) child->abort("the data is broken");
      child->all_reduce(values.view(), ReduceOp::sum(), *stream);
    });
    EXPECT_THAT(error.what(), HasSubstr("the data is broken"));
    child.reset();
    stream->synchronize();
    child = context.make(std::chrono::minutes(5));
    child->all_reduce(values.put(*stream), ReduceOp::sum(), *stream);
    EXPECT_EQ(values.fetch(*stream)[999], static_cast<float>(child->size()));
  }
}

// A rank that fails frees its memory: nobody may read or write it any more.
void abort_in_the_middle_of_a_large_all_reduce_is_safe(ContractContext& context) {
  if (context.comm.size() < 2) return;
  for (int round = 0; round < 4; ++round) {
    auto const child = context.make(std::chrono::minutes(5));
    pass_barrier(context);
    auto const stream = context.stream();
    std::thread aborter;
    if (child->rank() == 0) {
      aborter = std::thread([&child, round] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2 + 3 * round));
        child->abort("enough");
      });
    }
    auto const error = error_of<CommError>([&] {
      for (;;) {
        // Gone when this rank fails, not before its stream is done with it.
        Elements<double> const values(*child, std::size_t{1} << 20, 1.0);
        try {
          child->all_reduce(values.view(), ReduceOp::sum(), *stream);
        } catch (CommError const&) {
          stream->synchronize();
          throw;
        }
        stream->synchronize();
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    if (aborter.joinable()) aborter.join();
    pass_barrier(context);
  }
}

// One deadline for the whole operation, however many ranks come late one after another.
void deadlines_of_several_peers_do_not_add_up(ContractContext& context) {
  if (context.comm.size() < 3) return;
  auto const child = context.make(std::chrono::milliseconds(1500));
  auto const stream = context.stream();
  // Rank 1 comes after 1.2 s, the last rank never.
  auto const begin = std::chrono::steady_clock::now();
  if (child->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  if (child->rank() == 0) {
    static_cast<void>(failure_of(*stream, [&] { child->barrier(*stream); }));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2500));
  } else if (child->rank() == 1) {
    static_cast<void>(failure_of(*stream, [&] { child->barrier(*stream); }));
  }
  pass_barrier(context);
}

void an_allocation_that_differs_is_an_error(ContractContext& context) {
  if (context.comm.size() < 2) return;
  auto const bytes = Bytes{context.comm.rank() == 0 ? std::size_t{4096} : std::size_t{8192}};
  expect_refused([&] { static_cast<void>(context.comm.allocate(bytes)); }, "rank 1 for 8192");
  pass_barrier(context);
}

void an_impossible_allocation_is_out_of_memory_on_every_rank(ContractContext& context) {
  auto const error = error_of([&] { static_cast<void>(context.comm.allocate(Bytes{std::size_t{1} << 60})); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
  pass_barrier(context);
}

}  // namespace

std::vector<ContractCase> failure_cases() {
  return {
      {"WrongArgumentsAreRefusedAndHarmNothing", &wrong_arguments_are_refused_and_harm_nothing},
      {"OperationsThatDifferAreAnErrorOnEveryRank", &operations_that_differ_are_an_error_on_every_rank},
      {"StepsThatBeginDifferentlyAreAnErrorInTermsOfSteps",
       &steps_that_begin_differently_are_an_error_in_terms_of_steps},
      {"StepsOfRanksAtDifferentPlacesOfTheirLoopsAreAnError",
       &steps_of_ranks_at_different_places_of_their_loops_are_an_error},
      {"LargeOperationsThatDifferAreNamedAsAWhole", &large_operations_that_differ_are_named_as_a_whole},
      {"ADeadlineNamesTheOperationAndTheMissingRanks", &a_deadline_names_the_operation_and_the_missing_ranks},
      {"AbortEndsWhatOthersWaitFor", &abort_ends_what_others_wait_for},
      {"AStreamWorksOnWhenAFailedCommunicatorIsGone", &a_stream_works_on_when_a_failed_communicator_is_gone},
      {"AbortInTheMiddleOfALargeAllReduceIsSafe", &abort_in_the_middle_of_a_large_all_reduce_is_safe},
      {"DeadlinesOfSeveralPeersDoNotAddUp", &deadlines_of_several_peers_do_not_add_up},
      {"AnAllocationThatDiffersIsAnError", &an_allocation_that_differs_is_an_error},
      {"AnImpossibleAllocationIsOutOfMemoryOnEveryRank",
       &an_impossible_allocation_is_out_of_memory_on_every_rank}};
}

}  // namespace ddp::testing

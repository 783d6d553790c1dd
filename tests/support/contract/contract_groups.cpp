#include "support/contract/communicator_contract.hpp"

namespace ddp::testing {
namespace {

void a_group_of_collectives_runs_in_order(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  Elements<double> const first(comm, 50'000, 1.0);
  Elements<std::uint8_t> const second(comm, 100, static_cast<std::uint8_t>(comm.rank().value()));
  static_cast<void>(first.put(*stream));
  static_cast<void>(second.put(*stream));
  comm.group([&] {
    comm.all_reduce(first.view(), ReduceOp::sum(), *stream);
    comm.all_reduce(second.view(), ReduceOp::max(), *stream);
  });
  EXPECT_EQ(first.fetch(*stream)[49'999], comm.size());
  EXPECT_EQ(second.fetch(*stream)[99], comm.size() - 1);
}

void an_exception_in_a_group_discards_it(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  Elements<double> const values(comm, 10, 1.0);
  static_cast<void>(values.put(*stream));
  EXPECT_THROW(comm.group([&] {
    comm.all_reduce(values.view(), ReduceOp::sum(), *stream);
    comm.broadcast(values.view(), Rank{comm.size()}, *stream);
  }),
               Error);
  EXPECT_EQ(values.fetch(*stream)[0], 1.0) << "the all-reduce was started";
  EXPECT_THROW(comm.group([&] { comm.group([] {}); }), Error);
  comm.all_reduce(values.view(), ReduceOp::sum(), *stream);
  EXPECT_EQ(values.fetch(*stream)[0], comm.size());
}

void a_split_is_a_group_of_its_own(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  // Even and odd ranks, in reverse order.
  std::vector<Rank> ranks;
  for (int r = comm.size() - 1; r >= 0; --r) {
    if (r % 2 == comm.rank().value() % 2) ranks.emplace_back(r);
  }
  auto const half = comm.split(ranks);
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->size(), static_cast<int>(ranks.size()));
  EXPECT_EQ(half->device(), comm.device());
  EXPECT_EQ(ranks[half->rank().index()], comm.rank());
  Elements<double> const values(*half, 30'000, comm.rank().value());
  half->all_reduce(values.put(*stream), ReduceOp::sum(), *stream);
  double expected = 0;
  for (Rank const rank : ranks) expected += rank.value();
  EXPECT_EQ(values.fetch(*stream)[29'999], expected);
  Tensor const memory = half->allocate(1_MiB);
  Elements<std::int32_t> const shared(elements_of<std::int32_t>(memory, 0, 1000));
  shared.host()[999] = 1;
  half->all_reduce(shared.put(*stream), ReduceOp::sum(), *stream);
  EXPECT_EQ(shared.fetch(*stream)[999], half->size());

  // A split of the split, and ranks that take part in none.
  auto const one = half->split(std::vector<Rank>{half->rank()});
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->size(), 1);
  one->all_reduce(shared.view(), ReduceOp::sum(), *stream);
  EXPECT_EQ(shared.fetch(*stream)[999], half->size());
  auto const first = comm.split(comm.rank() == 0 ? std::vector<Rank>{Rank{0}} : std::vector<Rank>{});
  EXPECT_EQ(first != nullptr, comm.rank() == 0);

  // Parent and child are independent.
  comm.barrier(*stream);
  stream->synchronize();
}

void a_wrong_split_is_refused_on_every_rank(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  EXPECT_THROW(static_cast<void>(comm.split(std::vector<Rank>{comm.rank(), comm.rank()})), Error);
  EXPECT_THROW(static_cast<void>(comm.split(std::vector<Rank>{Rank{comm.size()}})), Error);
  if (comm.size() > 1) {
    // Rank 1 says another group than the rest.
    std::vector<Rank> ranks{Rank{0}, Rank{1}};
    if (comm.rank() == 1) std::swap(ranks[0], ranks[1]);
    if (comm.rank().value() > 1) ranks.clear();
    EXPECT_THROW(static_cast<void>(comm.split(ranks)), Error);
  }
  comm.barrier(*stream);
  stream->synchronize();
}

}  // namespace

std::vector<ContractCase> group_cases() {
  return {{"AGroupOfCollectivesRunsInOrder", &a_group_of_collectives_runs_in_order},
          {"AnExceptionInAGroupDiscardsIt", &an_exception_in_a_group_discards_it},
          {"ASplitIsAGroupOfItsOwn", &a_split_is_a_group_of_its_own},
          {"AWrongSplitIsRefusedOnEveryRank", &a_wrong_split_is_refused_on_every_rank}};
}

}  // namespace ddp::testing

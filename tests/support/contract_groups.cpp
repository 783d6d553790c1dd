#include <numeric>

#include "support/communicator_contract.hpp"

namespace ddp::testing {
namespace {

void sends_and_receives_pair_up(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  if (comm.size() < 2) return;
  for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{300007}}) {
    std::vector<float> values(size);
    if (comm.rank() == 0) {
      fill_with_values(std::span(values), 3);
      for (int peer = 1; peer < comm.size(); ++peer)
        comm.send(view_of(std::span(values)), Rank{peer}, *stream);
    } else {
      comm.recv(view_of(std::span(values)), Rank{0}, *stream);
      expect_elements<float>(
          values, [](std::size_t i) { return static_cast<float>(element_value(3, i)); }, "received");
    }
  }
}

void messages_of_a_pair_keep_their_order(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  if (comm.size() < 2 || comm.rank().value() > 1) return;
  for (std::int32_t i = 0; i < 2000; ++i) {
    std::int32_t value = i;
    if (comm.rank() == 0) {
      comm.send(view_of(std::span(&value, 1)), Rank{1}, *stream);
    } else {
      value = -1;
      comm.recv(view_of(std::span(&value, 1)), Rank{0}, *stream);
      ASSERT_EQ(value, i);
    }
  }
}

// Each rank sends a large message to every rank, itself too, sends first: blocking calls would wait for ever.
void a_group_exchanges_in_any_order(ContractContext& context) {
  Communicator& comm = context.comm;
  HostStream stream;
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::size_t const size = 100'003;
  std::vector<std::vector<float>> out(ranks, std::vector<float>(size));
  std::vector<std::vector<float>> in(ranks, std::vector<float>(size));
  {
    Communicator::Group const group(comm);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      fill_with_values(std::span(out[peer]), comm.rank().value(), peer);
      comm.send(view_of(std::span(out[peer])), Rank{static_cast<int>(peer)}, stream);
    }
    for (std::size_t peer = ranks; peer-- > 0;) {
      comm.recv(view_of(std::span(in[peer])), Rank{static_cast<int>(peer)}, stream);
    }
  }
  stream.synchronize();
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    expect_elements<float>(
        in[peer],
        [&](std::size_t i) {
          return static_cast<float>(element_value(static_cast<int>(peer), comm.rank().index() + i));
        },
        text("from rank ", peer));
  }
}

void a_group_of_collectives_runs_in_order(ContractContext& context) {
  Communicator& comm = context.comm;
  HostStream stream;
  std::vector<double> first(50'000, 1.0);
  std::vector<std::uint8_t> second(100, static_cast<std::uint8_t>(comm.rank().value()));
  {
    Communicator::Group const group(comm);
    comm.all_reduce(view_of(std::span(first)), ReduceOp::sum(), stream);
    comm.all_reduce(view_of(std::span(second)), ReduceOp::max(), stream);
  }
  stream.synchronize();
  EXPECT_EQ(first[49'999], comm.size());
  EXPECT_EQ(second[99], comm.size() - 1);
}

void a_group_mixes_collectives_and_messages(ContractContext& context) {
  Communicator& comm = context.comm;
  HostStream stream;
  int const next = (comm.rank().value() + 1) % comm.size();
  int const previous = (comm.rank().value() + comm.size() - 1) % comm.size();
  std::vector<std::int64_t> sum(3, 1);
  std::vector<std::int64_t> out(20'000, comm.rank().value());
  std::vector<std::int64_t> in(20'000, -1);
  {
    Communicator::Group const group(comm);
    comm.send(view_of(std::span(out)), Rank{next}, stream);
    comm.all_reduce(view_of(std::span(sum)), ReduceOp::sum(), stream);
    comm.recv(view_of(std::span(in)), Rank{previous}, stream);
  }
  stream.synchronize();
  EXPECT_EQ(sum[2], comm.size());
  EXPECT_EQ(in[19'999], previous);
}

void a_split_while_operations_are_on_a_stream_is_refused(ContractContext& context) {
  Communicator& comm = context.comm;
  HostStream stream;
  stream.expect_wait();
  std::vector<double> values(3, 1.0);
  comm.all_reduce(view_of(std::span(values)), ReduceOp::sum(), stream);
  for (auto const& call : {std::function<void()>([&] { static_cast<void>(comm.split({})); }),
                           std::function<void()>([&] { static_cast<void>(comm.allocate(Bytes{8})); })}) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (Error const& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_state) << error.what();
    }
  }
  stream.synchronize();
  EXPECT_EQ(values[0], comm.size());
  EXPECT_EQ(comm.split({}), nullptr);
}

void an_exception_in_a_group_discards_it(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::vector<double> values(10, 1.0);
  EXPECT_THROW(
      {
        Communicator::Group const group(comm);
        comm.all_reduce(view_of(std::span(values)), ReduceOp::sum(), *stream);
        comm.send(view_of(std::span(values)), Rank{comm.size()}, *stream);
      },
      Error);
  EXPECT_EQ(values[0], 1.0) << "the all-reduce was started";
  EXPECT_THROW(
      {
        Communicator::Group const group(comm);
        Communicator::Group const nested(comm);
      },
      Error);
  comm.all_reduce(view_of(std::span(values)), ReduceOp::sum(), *stream);
  EXPECT_EQ(values[0], comm.size());
}

void many_operations_are_in_flight(ContractContext& context) {
  Communicator& comm = context.comm;
  HostStream stream;
  std::size_t const operations = 500;
  std::vector<std::vector<float>> values;
  for (std::size_t i = 0; i < operations; ++i) values.emplace_back(i * 7 % 900, static_cast<float>(i));
  for (auto& each : values) comm.all_reduce(view_of(std::span(each)), ReduceOp::sum(), stream);
  stream.synchronize();
  for (std::size_t i = 0; i < operations; ++i) {
    expect_elements<float>(
        values[i], [&](std::size_t) { return static_cast<float>(i) * static_cast<float>(comm.size()); },
        text("operation ", i));
  }
}

// An operation is ordered behind the work before it and before the work behind it, on its stream.
void operations_are_ordered_on_their_stream(ContractContext& context) {
  Communicator& comm = context.comm;
  HostStream stream;
  std::vector<double> values(40'000);
  double seen = 0;
  for (int round = 1; round <= 20; ++round) {
    stream.enqueue([&values, round] { std::fill(values.begin(), values.end(), double(round)); });
    comm.all_reduce(view_of(std::span(values)), ReduceOp::sum(), stream);
    stream.enqueue([&values, &seen] { seen += values[39'999]; });
  }
  stream.synchronize();
  EXPECT_EQ(seen, 210.0 * comm.size());
}

void no_rank_leaves_a_barrier_early(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  // Every rank counts its arrivals in memory that all can read through all_gather after the barrier.
  for (std::int32_t round = 0; round < 50; ++round) {
    comm.barrier(*stream);
    std::vector<std::int32_t> rounds(static_cast<std::size_t>(comm.size()));
    comm.all_gather(view_of(std::span(&round, 1)), view_of(std::span(rounds)), *stream);
    for (std::int32_t const other : rounds) ASSERT_EQ(other, round);
  }
  auto const before = std::chrono::steady_clock::now();
  if (comm.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(150));
  comm.barrier(*stream);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(comm.size() > 1 ? 100 : 0));
}

void a_split_is_a_group_of_its_own(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  // Even and odd ranks, in reverse order.
  std::vector<Rank> ranks;
  for (int r = comm.size() - 1; r >= 0; --r) {
    if (r % 2 == comm.rank().value() % 2) ranks.emplace_back(r);
  }
  auto const half = comm.split(ranks);
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(half->size(), static_cast<int>(ranks.size()));
  EXPECT_EQ(ranks[half->rank().index()], comm.rank());
  std::vector<double> values(30'000, comm.rank().value());
  half->all_reduce(view_of(std::span(values)), ReduceOp::sum(), *stream);
  double expected = 0;
  for (Rank const rank : ranks) expected += rank.value();
  EXPECT_EQ(values[29'999], expected);
  Tensor const memory = half->allocate(Bytes{1 << 20});
  TensorView const shared{memory.view().data, Shape{1000}, DType::i32, {}};
  shared.as<std::int32_t>()[999] = 1;
  half->all_reduce(shared, ReduceOp::sum(), *stream);
  EXPECT_EQ(shared.as<std::int32_t>()[999], half->size());

  // A split of the split, and ranks that take part in none.
  auto const one = half->split(std::vector<Rank>{half->rank()});
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->size(), 1);
  auto const first = comm.split(comm.rank() == 0 ? std::vector<Rank>{Rank{0}} : std::vector<Rank>{});
  EXPECT_EQ(first != nullptr, comm.rank() == 0);

  // Parent and child are independent.
  comm.barrier(*stream);
}

void a_wrong_split_is_refused_on_every_rank(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
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
}

}  // namespace

std::vector<ContractCase> group_cases() {
  return {
      {"SendsAndReceivesPairUp", &sends_and_receives_pair_up},
      {"MessagesOfAPairKeepTheirOrder", &messages_of_a_pair_keep_their_order},
      {"AGroupExchangesInAnyOrder", &a_group_exchanges_in_any_order},
      {"AGroupOfCollectivesRunsInOrder", &a_group_of_collectives_runs_in_order},
      {"AGroupMixesCollectivesAndMessages", &a_group_mixes_collectives_and_messages},
      {"ASplitWhileOperationsAreOnAStreamIsRefused", &a_split_while_operations_are_on_a_stream_is_refused},
      {"AnExceptionInAGroupDiscardsIt", &an_exception_in_a_group_discards_it},
      {"ManyOperationsAreInFlight", &many_operations_are_in_flight},
      {"OperationsAreOrderedOnTheirStream", &operations_are_ordered_on_their_stream},
      {"NoRankLeavesABarrierEarly", &no_rank_leaves_a_barrier_early},
      {"ASplitIsAGroupOfItsOwn", &a_split_is_a_group_of_its_own},
      {"AWrongSplitIsRefusedOnEveryRank", &a_wrong_split_is_refused_on_every_rank}};
}

}  // namespace ddp::testing

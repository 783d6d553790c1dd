#include "support/communicator_contract.hpp"

namespace ddp::testing {
namespace {

void sends_and_receives_pair_up(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  if (comm.size() < 2) return;
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{300007}}) {
      Elements<T> const values(comm, size);
      if (comm.rank() == 0) {
        fill_with_values(values.host(), 3);
        static_cast<void>(values.put(*stream));
        for (int peer = 1; peer < comm.size(); ++peer) comm.send(values.view(), Rank{peer}, *stream);
        stream->synchronize();
      } else {
        comm.recv(values.view(), Rank{0}, *stream);
        expect_elements<T>(
            values.fetch(*stream), [](std::size_t i) { return to_element<T>(element_value(3, i)); },
            text("received ", dtype_of<T>, "[", size, "]"));
      }
    }
  });
}

void messages_of_a_pair_keep_their_order(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  if (comm.size() < 2 || comm.rank().value() > 1) return;
  std::size_t const messages = 2000;
  Elements<std::int32_t> const values(comm, messages, -1);
  auto const number = [](std::size_t i) { return static_cast<std::int32_t>(i); };
  if (comm.rank() == 0) {
    for (std::size_t i = 0; i < messages; ++i) values.host()[i] = number(i);
    static_cast<void>(values.put(*stream));
    for (std::size_t i = 0; i < messages; ++i) comm.send(values.part(i, 1), Rank{1}, *stream);
    stream->synchronize();
  } else {
    for (std::size_t i = 0; i < messages; ++i) comm.recv(values.part(i, 1), Rank{0}, *stream);
    expect_elements<std::int32_t>(values.fetch(*stream), number, "messages");
  }
}

// Each rank sends a large message to every rank, itself too, sends first: blocking calls would wait for ever.
void a_group_exchanges_in_any_order(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::size_t const size = 100'003;
  std::vector<Elements<float>> out;
  std::vector<Elements<float>> in;
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    in.emplace_back(comm, size);
    out.emplace_back(comm, size);
    fill_with_values(out.back().host(), comm.rank().value(), peer);
    static_cast<void>(out.back().put(*stream));
  }
  {
    Communicator::Group const group(comm);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      comm.send(out[peer].view(), Rank{static_cast<int>(peer)}, *stream);
    }
    for (std::size_t peer = ranks; peer-- > 0;) {
      comm.recv(in[peer].view(), Rank{static_cast<int>(peer)}, *stream);
    }
  }
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    expect_elements<float>(
        in[peer].fetch(*stream),
        [&](std::size_t i) {
          return static_cast<float>(element_value(static_cast<int>(peer), comm.rank().index() + i));
        },
        text("from rank ", peer));
  }
}

// Several messages between the same ranks in one group, of different sizes: each recv gets its send's.
void messages_of_a_group_keep_their_order_too(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  int const next = (comm.rank().value() + 1) % comm.size();
  int const previous = (comm.rank().value() + comm.size() - 1) % comm.size();
  constexpr std::size_t kMessages[] = {1, 400'000, 0, 3, 70'001};
  std::vector<Elements<double>> out;
  std::vector<Elements<double>> in;
  for (std::size_t const size : kMessages) {
    out.push_back(values_of<double>(comm, comm.rank(), size, *stream));
    in.emplace_back(comm, size);
  }
  {
    Communicator::Group const group(comm);
    for (auto const& message : in) comm.recv(message.view(), Rank{previous}, *stream);
    for (auto const& message : out) comm.send(message.view(), Rank{next}, *stream);
  }
  for (auto const& message : in) {
    expect_elements<double>(
        message.fetch(*stream),
        [&](std::size_t i) { return static_cast<double>(element_value(previous, i)); },
        text("message of ", message.host().size()));
  }
}

void a_group_of_collectives_runs_in_order(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  Elements<double> const first(comm, 50'000, 1.0);
  Elements<std::uint8_t> const second(comm, 100, static_cast<std::uint8_t>(comm.rank().value()));
  static_cast<void>(first.put(*stream));
  static_cast<void>(second.put(*stream));
  {
    Communicator::Group const group(comm);
    comm.all_reduce(first.view(), ReduceOp::sum(), *stream);
    comm.all_reduce(second.view(), ReduceOp::max(), *stream);
  }
  EXPECT_EQ(first.fetch(*stream)[49'999], comm.size());
  EXPECT_EQ(second.fetch(*stream)[99], comm.size() - 1);
}

void a_group_mixes_collectives_and_messages(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.side_stream();
  int const next = (comm.rank().value() + 1) % comm.size();
  int const previous = (comm.rank().value() + comm.size() - 1) % comm.size();
  Elements<std::int64_t> const sum(comm, 3, 1);
  Elements<std::int64_t> const out(comm, 20'000, comm.rank().value());
  Elements<std::int64_t> const in(comm, 20'000, -1);
  for (auto const* const each : {&sum, &out, &in}) static_cast<void>(each->put(*stream));
  {
    Communicator::Group const group(comm);
    comm.send(out.view(), Rank{next}, *stream);
    comm.all_reduce(sum.view(), ReduceOp::sum(), *stream);
    comm.recv(in.view(), Rank{previous}, *stream);
  }
  EXPECT_EQ(sum.fetch(*stream)[2], comm.size());
  EXPECT_EQ(in.fetch(*stream)[19'999], previous);
}

void an_exception_in_a_group_discards_it(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  Elements<double> const values(comm, 10, 1.0);
  static_cast<void>(values.put(*stream));
  EXPECT_THROW(
      {
        Communicator::Group const group(comm);
        comm.all_reduce(values.view(), ReduceOp::sum(), *stream);
        comm.send(values.view(), Rank{comm.size()}, *stream);
      },
      Error);
  EXPECT_EQ(values.fetch(*stream)[0], 1.0) << "the all-reduce was started";
  EXPECT_THROW(
      {
        Communicator::Group const group(comm);
        Communicator::Group const nested(comm);
      },
      Error);
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
  return {{"SendsAndReceivesPairUp", &sends_and_receives_pair_up},
          {"MessagesOfAPairKeepTheirOrder", &messages_of_a_pair_keep_their_order},
          {"AGroupExchangesInAnyOrder", &a_group_exchanges_in_any_order},
          {"MessagesOfAGroupKeepTheirOrderToo", &messages_of_a_group_keep_their_order_too},
          {"AGroupOfCollectivesRunsInOrder", &a_group_of_collectives_runs_in_order},
          {"AGroupMixesCollectivesAndMessages", &a_group_mixes_collectives_and_messages},
          {"AnExceptionInAGroupDiscardsIt", &an_exception_in_a_group_discards_it},
          {"ASplitIsAGroupOfItsOwn", &a_split_is_a_group_of_its_own},
          {"AWrongSplitIsRefusedOnEveryRank", &a_wrong_split_is_refused_on_every_rank}};
}

}  // namespace ddp::testing

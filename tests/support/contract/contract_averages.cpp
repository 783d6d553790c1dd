#include "support/contract/average_accuracy.hpp"

#include "ddp/core/text.hpp"

namespace ddp::testing {
namespace {

template <class T>
void expect_no_bias_of(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  int const ranks = comm.size();
  int const roundings = context.in_rank_order ? 1 : ranks + 1;
  auto const n = static_cast<std::size_t>(ranks);
  auto const mine = [&](std::size_t count) {
    Elements<T> values(comm, count);
    for (std::size_t i = 0; i < count; ++i) values.host()[i] = average_sample<T>(comm.rank().value(), i);
    static_cast<void>(values.put(*stream));
    return values;
  };
  auto const expect = [&](Elements<T> const& values, char const* how, std::size_t first = 0) {
    expect_averages<T>(values.fetch(*stream), ranks, ranks, roundings,
                       text(dtype_of<T>, " over ", ranks, " ranks, ", how), first);
  };
  auto const in = mine(kAveraged);
  Elements<T> const out(comm, kAveraged);
  comm.all_reduce(in.view(), out.view(), ReduceOp::average(), *stream);
  expect(out, "all_reduce");
  comm.all_reduce(in.view(), ReduceOp::average(), *stream);
  expect(in, "all_reduce in place");

  Rank const root{ranks - 1};
  auto const to_root = mine(kAveraged);
  Elements<T> const untouched(comm, kAveraged, to_element<T>(99));
  comm.reduce(to_root.view(), untouched.put(*stream), ReduceOp::average(), root, *stream);
  if (comm.rank() == root) {
    expect(untouched, "reduce");
  } else {
    expect_elements<T>(
        untouched.fetch(*stream), [](std::size_t) { return to_element<T>(99); }, "reduce, not the root");
  }

  auto const whole = mine(kAveraged * n);
  Elements<T> const part(comm, kAveraged);
  comm.reduce_scatter(whole.view(), part.view(), ReduceOp::average(), *stream);
  expect(part, "reduce_scatter", comm.rank().index() * kAveraged);

  auto const first = mine(kAveraged);
  auto const second = mine(kAveraged);
  auto const sent = values_of<T>(comm, comm.rank(), 100, *stream);
  comm.group([&] {
    comm.all_reduce(first.view(), ReduceOp::average(), *stream);
    comm.broadcast(sent.view(), Rank{0}, *stream);
    comm.all_reduce(second.view(), second.view(), ReduceOp::average(), *stream);
  });
  expect(first, "the first of a group");
  expect(second, "the last of a group");
  expect_elements<T>(
      sent.fetch(*stream), [](std::size_t i) { return to_element<T>(element_value(0, i)); },
      "a broadcast of the same group");
}

void averages_have_no_bias(ContractContext& context) {
  expect_no_bias_of<float16>(context);
  expect_no_bias_of<bfloat16>(context);
}

}  // namespace

std::vector<ContractCase> average_cases() { return {{"AveragesHaveNoBias", &averages_have_no_bias}}; }

}  // namespace ddp::testing

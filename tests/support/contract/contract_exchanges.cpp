#include <limits>

#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"

namespace ddp::testing {
namespace {

constexpr std::size_t kPartOfRank = 70001;  // of what is in as many parts as ranks

// Ranks may take parts from each other's memory where all can see it; in place, and where one cannot.
void parts_in_allocated_memory(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const me = comm.rank().index();
  std::size_t const most = 100'003;
  Tensor const memory = comm.allocate(Bytes{most * ranks * sizeof(float)});
  for (bool const everywhere : {true, false}) {
    for (std::size_t const size : {std::size_t{1}, std::size_t{600}, most}) {
      std::string const what = text("f32[", size, "]", everywhere ? "" : ", allocated on rank 0 only");
      auto const in = everywhere || me == 0 ? Elements<float>(elements_of<float>(memory, 0, size * ranks))
                                            : Elements<float>(comm, size * ranks);
      Elements<float> const out(comm, size);
      fill_with_values(in.host(), comm.rank().value());
      comm.reduce_scatter(in.put(*stream), out.view(), ReduceOp::sum(), *stream);
      expect_reduction<float>(context, ReduceOp::Kind::sum, out.fetch(*stream), "reduce_scatter " + what,
                              me * size);
      comm.reduce_scatter(in.view(), in.part(me * size, size), ReduceOp::sum(), *stream);
      expect_reduction<float>(context, ReduceOp::Kind::sum, in.fetch(*stream).subspan(me * size, size),
                              "reduce_scatter in place " + what, me * size);
      fill_with_values(in.host().subspan(me * size, size), comm.rank().value());
      static_cast<void>(in.put(*stream));
      comm.all_gather(in.part(me * size, size), in.view(), *stream);
      expect_elements<float>(
          in.fetch(*stream),
          [&](std::size_t i) {
            return static_cast<float>(element_value(static_cast<int>(i / size), i % size));
          },
          "all_gather " + what);
    }
  }
}

// One rank has NaN, which counts nothing.
void a_scaled_reduce_scatter_works_in_place(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::size_t const mine = comm.rank().index() * kPartOfRank;
  bool const counts = ranks == 1 || comm.rank().value() > 0;
  Factor const factor(comm, counts ? 2 : 0, *stream);
  for_each_type([&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      T const nan = T(std::numeric_limits<float>::quiet_NaN());
      Elements<T> const all(comm, ranks * kPartOfRank, counts ? T(3) : nan);
      comm.reduce_scatter(all.put(*stream), all.part(mine, kPartOfRank), factor.scaled_sum(), *stream);
      T const expected = T(6 * static_cast<float>(ranks > 1 ? ranks - 1 : 1));
      expect_elements<T>(
          all.fetch(*stream).subspan(mine, kPartOfRank), [&](std::size_t) { return expected; },
          text("scaled reduce_scatter of ", dtype_of<T>, " in place"));
    }
  });
}

}  // namespace

std::vector<ContractCase> exchange_cases() {
  return {{"PartsInAllocatedMemory", &parts_in_allocated_memory},
          {"R25AScaledReduceScatterWorksInPlace", &a_scaled_reduce_scatter_works_in_place}};
}

}  // namespace ddp::testing

// The kernel that combines ranks in rank order (R18), beside what the CPU does.
#include <cstring>
#include <limits>
#include <random>

#include "comm/kernels/cuda_kernels.hpp"
#include "comm/kernels/reduce_kernels.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using Kind = ReduceOp::Kind;

struct Case {
  std::size_t ranks;
  std::size_t rank;  // whose elements lie elsewhere
  std::size_t count;
  std::size_t off;  // elements behind any nice alignment
  Kind kind;
  bool scaled;
};

template <class T>
void expect_what_the_cpu_does(Case const& one, Stream& stream) {
  Communicator const& comm = world().communicator();
  std::size_t const pitch = (one.count + one.off + 127) / 128 * 128;
  Elements<T> const all(comm, pitch * one.ranks, T{}, one.off);
  Elements<T> const own(comm, one.count, T{}, one.off);
  Elements<T> const out(comm, one.count, T{}, one.off);
  Elements<double> const factors(comm, one.ranks);
  std::mt19937 random(7);
  std::vector<std::vector<T>> elements;
  std::vector<ReduceSource> sources;
  for (std::size_t r = 0; r < one.ranks; ++r) {
    std::vector<T>& of_rank = elements.emplace_back();
    for (std::size_t i = 0; i < one.count; ++i) {
      of_rank.push_back(to_element<T>((static_cast<double>(random()) - 2e9) / 3e9));
    }
    factors.host()[r] = r == 1 ? 0.0 : 1.0 / (3.0 + static_cast<double>(r));
    if (one.scaled && r == 1) of_rank[0] = T(std::numeric_limits<float>::quiet_NaN());
    auto const to =
        r == one.rank ? own.host().begin()
                      : all.host().begin() + static_cast<std::ptrdiff_t>((r < one.rank ? r : r - 1) * pitch);
    std::ranges::copy(of_rank, to);
  }
  for (std::size_t r = 0; r < one.ranks; ++r) {
    sources.push_back({elements[r].data(), one.scaled ? factors.host()[r] : 1.0});
  }
  std::vector<T> expected(one.count);
  void* const to = expected.data();
  reduce_elements({&to, 1}, sources, one.count, dtype_of<T>, one.kind, one.scaled);
  cuda::RankElements const from{
      .own = own.put(stream).data,
      .others = all.put(stream).data,
      .pitch = pitch * sizeof(T),
      .rank = one.rank,
      .ranks = one.ranks,
      .factors = one.scaled ? static_cast<double const*>(factors.put(stream).data) : nullptr};
  cuda::reduce_in_rank_order(out.view().data, from, one.count, dtype_of<T>, one.kind, stream);
  expect_elements<T>(
      out.fetch(stream), [&](std::size_t i) { return expected[i]; },
      text(to_string(one.kind), one.scaled ? " scaled" : "", " of ", dtype_of<T>, "[", one.count, "], ",
           one.off, " off, rank ", one.rank, " of ", one.ranks));
}

TEST(ReduceInRankOrder, R18AsTheCpuDoesWithAnyNumberOfRanks) {
  auto const stream = make_compute_stream(world().device());
  for (std::size_t const ranks : {2, 3, 4, 5, 8, 13}) {
    for (std::size_t const count : {1, 1001, 40'003}) {
      for (std::size_t const off : {0, 1}) {
        for (std::size_t const rank : {std::size_t{0}, ranks / 2, ranks - 1}) {
          for (Kind const kind : {Kind::sum, Kind::average, Kind::product}) {
            for (bool const scaled : {false, true}) {
              if (scaled && kind != Kind::sum) continue;
              Case const one{ranks, rank, count, off, kind, scaled};
              expect_what_the_cpu_does<float>(one, *stream);
              expect_what_the_cpu_does<double>(one, *stream);
              expect_what_the_cpu_does<float16>(one, *stream);
              expect_what_the_cpu_does<bfloat16>(one, *stream);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ddp::testing

#include <random>
#include <span>
#include <type_traits>

#include "ddp/core/text.hpp"
#include "support/contract/communicator_contract.hpp"
#include "support/sanitized.hpp"

namespace ddp::testing {
namespace {

using Kind = ReduceOp::Kind;

// Empty, one, odd, a few cache lines, larger than the one-shot path, larger than staging and not a multiple.
constexpr std::size_t kSizes[] = {0, 1, 7, 1000, 20011, 300007};
// Sanitizers slow down what compares elements most, and look at paths: there one type has the large sizes.
template <class T>
constexpr bool kHasLargeSizes = !kSanitized || std::is_same_v<T, float>;
template <class T>
std::span<std::size_t const> sizes() {
  return std::span(kSizes).first(std::size(kSizes) - (kHasLargeSizes<T> ? 0 : 1));
}
template <class T>
constexpr std::size_t kPart = kHasLargeSizes<T> ? 70001 : 701;  // of what is in as many parts as ranks
constexpr Kind kKinds[] = {Kind::sum, Kind::product, Kind::min, Kind::max, Kind::average};

template <class T, class Body>
void for_each_reduction(Body body) {
  for (Kind const kind : kKinds) {
    if (kind == Kind::average && !is_floating(dtype_of<T>)) continue;
    body(ReduceOp{kind, nullptr});
  }
}

void all_reduce_every_type_and_operation(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  for_each_reducible_type([&]<class T>(T) {
    for_each_reduction<T>([&](ReduceOp op) {
      for (std::size_t const size : sizes<T>()) {
        std::string const what = text(to_string(op.kind), " of ", dtype_of<T>, "[", size, "]");
        auto const in = values_of<T>(comm, comm.rank(), size, *stream, 1);
        Elements<T> const out(comm, size, T{}, 1);
        comm.all_reduce(in.view(), out.view(), op, *stream);
        expect_reduction<T>(context, op.kind, out.fetch(*stream), what);
        expect_elements<T>(
            in.fetch(*stream),
            [&](std::size_t i) { return to_element<T>(element_value(comm.rank().value(), i)); },
            what + ", in");
        comm.all_reduce(in.view(), op, *stream);
        expect_reduction<T>(context, op.kind, in.fetch(*stream), what + ", in place");
      }
    });
  });
}

void all_reduce_in_allocated_memory(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  std::size_t const count = 3'000'017;  // past the size from which stores are streamed
  Tensor const memory = comm.allocate(Bytes{2 * count * sizeof(float)});
  for (std::size_t const size :
       {std::size_t{1}, std::size_t{129}, std::size_t{512}, std::size_t{20011}, count}) {
    for (std::size_t const offset : {std::size_t{0}, std::size_t{1}, std::size_t{17}}) {
      if (offset + size > count) continue;
      Elements<float> const in(elements_of<float>(memory, offset, size));
      Elements<float> const out(elements_of<float>(memory, count, size));
      std::string const what = text("f32[", size, "] at ", offset);
      fill_with_values(in.host(), comm.rank().value());
      comm.all_reduce(in.put(*stream), out.view(), ReduceOp::sum(), *stream);
      expect_reduction<float>(context, Kind::sum, out.fetch(*stream), what);
      comm.all_reduce(in.view(), ReduceOp::sum(), *stream);
      expect_reduction<float>(context, Kind::sum, in.fetch(*stream), what + ", in place");
    }
  }
}

void memory_on_some_ranks_allocated_on_others_not(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  std::size_t const most = 200003;
  Tensor const memory = comm.allocate(Bytes{most * sizeof(double)});
  for (std::size_t const size : {std::size_t{3}, std::size_t{65}, std::size_t{255}, std::size_t{300}, most}) {
    auto const mine = comm.rank() == 0 ? Elements<double>(elements_of<double>(memory, 0, size))
                                       : Elements<double>(comm, size);
    fill_with_values(mine.host(), comm.rank().value());
    comm.all_reduce(mine.put(*stream), ReduceOp::sum(), *stream);
    expect_reduction<double>(context, Kind::sum, mine.fetch(*stream), text("mixed memory, f64[", size, "]"));
  }
}

void allocated_memory_is_zeroed_and_outlives_its_communicator(ContractContext& context) {
  auto const stream = context.stream();
  Tensor memory;
  {
    auto const child = context.make(std::chrono::seconds(60));
    memory = child->allocate(Bytes{100'000});
  }
  Elements<std::uint8_t> const bytes(memory.view());
  ASSERT_EQ(bytes.host().size(), 100'000U);
  for (std::uint8_t const byte : bytes.fetch(*stream)) ASSERT_EQ(byte, 0);
  std::fill(bytes.host().begin(), bytes.host().end(), std::uint8_t{7});
  static_cast<void>(bytes.put(*stream));
  EXPECT_EQ(bytes.fetch(*stream)[99'999], 7);
  EXPECT_EQ(context.comm.allocate(Bytes{0}).view().count(), 0U);
}

void scaled_sums_use_each_ranks_factor(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  double weights = 0;
  for (int r = 0; r < comm.size(); ++r) weights += r;
  if (weights == 0) weights = 1;
  Factor const weight(comm, comm.size() == 1 ? 0.5 : comm.rank().value() / weights, *stream);  // rank 0: 0
  Factor const share(comm, 1.0 / comm.size(), *stream);
  for (std::size_t const size : {std::size_t{3}, std::size_t{300007}}) {
    auto const wide = values_of<double>(comm, comm.rank(), size, *stream);
    comm.all_reduce(wide.view(), weight.scaled_sum(), *stream);
    auto const found = wide.fetch(*stream);
    for (std::size_t i = 0; i < size; i += 997) {
      double expected = comm.size() == 1 ? 0.5 * element_value(0, i) : 0;
      for (int r = 1; r < comm.size(); ++r) expected += r / weights * element_value(r, i);
      ASSERT_NEAR(found[i], expected, 1e-14 * expected) << i;
    }
    // Scaled before the sum: values near the type's limit do not overflow (R12).
    Elements<float16> const narrow(comm, size, float16(60000.0F));
    comm.all_reduce(narrow.put(*stream), share.scaled_sum(), *stream);
    auto const ulp = 32.0F;  // one rounding, or one a rank
    ASSERT_NEAR(static_cast<float>(narrow.fetch(*stream)[size / 2]), 60000.0F,
                context.in_rank_order ? ulp : ulp * static_cast<float>(comm.size()));
  }
}

void floating_sums_are_bit_equal_on_every_rank_and_path(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  std::size_t const size = 100'003;
  std::mt19937 random(static_cast<unsigned>(comm.rank().value()) + 1);
  Elements<float> const whole(comm, size);
  Elements<float> const pieces(comm, size);
  for (std::size_t i = 0; i < size; ++i) {
    whole.host()[i] = pieces.host()[i] = static_cast<float>(random()) / 7.0F - 3e8F;
  }
  comm.all_reduce(whole.put(*stream), ReduceOp::sum(), *stream);
  static_cast<void>(pieces.put(*stream));  // in small messages
  for (std::size_t offset = 0; offset < size; offset += 1000) {
    comm.all_reduce(pieces.part(offset, std::min<std::size_t>(1000, size - offset)), ReduceOp::sum(),
                    *stream);
  }
  Elements<float> const all(comm, size * static_cast<std::size_t>(comm.size()));
  for (auto const* const each : {&whole, &pieces}) {
    auto const mine = each->fetch(*stream);
    comm.all_gather(each->view(), all.view(), *stream);
    auto const theirs = all.fetch(*stream);
    for (std::size_t r = 0; r < static_cast<std::size_t>(comm.size()); ++r) {
      EXPECT_EQ(std::memcmp(mine.data(), theirs.data() + r * size, size * sizeof(float)), 0) << "rank " << r;
    }
  }
  if (!context.in_rank_order) return;
  EXPECT_EQ(std::memcmp(whole.host().data(), pieces.host().data(), size * sizeof(float)), 0);
}

// R4: weight 0 says that there is nothing to add, and the mean over no samples is NaN.
void a_factor_of_0_hides_whatever_stands_there(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  bool const last = comm.rank().value() == comm.size() - 1;
  Factor const weight(comm, last ? 3.0 : 0.0, *stream);
  Factor const nothing(comm, 0, *stream);
  for_each_type([&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      for (std::size_t const size : {std::size_t{5}, std::size_t{30'000}}) {
        Elements<T> const values(comm, size, T(last ? 2.0F : std::numeric_limits<float>::quiet_NaN()));
        comm.all_reduce(values.put(*stream), weight.scaled_sum(), *stream);
        expect_elements<T>(
            values.fetch(*stream), [](std::size_t) { return T(6.0F); }, text("NaN × 0 in ", dtype_of<T>));
        comm.all_reduce(values.view(), nothing.scaled_sum(), *stream);
        expect_elements<T>(
            values.fetch(*stream), [](std::size_t) { return T(0.0F); }, "no rank has anything");
      }
    }
  });
}

// A15. One element for each rank that may have the NaN, and one that all have.
void min_and_max_keep_a_nan(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  bool const is_left_out = context.passes_over_nan && ranks > 1;
  for_each_type([&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      T const nan = T(std::numeric_limits<float>::quiet_NaN());
      for (auto const op : {ReduceOp::min(), ReduceOp::max()}) {
        for (std::size_t const size : {ranks + 2, std::size_t{30'000}}) {
          // Element i: NaN on rank i, on all ranks for i = ranks, on none for the last of each ranks + 2.
          auto const owner = [&](std::size_t i) { return i % (ranks + 2); };
          Elements<T> const values(comm, size);
          for (std::size_t i = 0; i < size; ++i) {
            bool const mine = owner(i) == comm.rank().index() || owner(i) == ranks;
            values.host()[i] = mine ? nan : T(static_cast<float>(comm.rank().value()));
          }
          comm.all_reduce(values.put(*stream), op, *stream);
          auto const found = values.fetch(*stream);
          float const best = op.kind == ReduceOp::Kind::min ? 0 : static_cast<float>(ranks - 1);
          for (std::size_t i = 0; i < size; ++i) {
            auto const result = static_cast<float>(found[i]);
            bool const is_nan = owner(i) == ranks || (owner(i) < ranks && !is_left_out);
            if (is_nan ? std::isnan(result) : !std::isnan(result) && (owner(i) < ranks || result == best))
              continue;
            ADD_FAILURE() << to_string(op.kind) << " of " << dtype_of<T> << ", NaN on rank " << owner(i)
                          << ": " << result;
            return;
          }
          // R3: the same bits everywhere.
          Elements<T> const all(comm, size * ranks);
          comm.all_gather(values.view(), all.view(), *stream);
          auto const theirs = all.fetch(*stream);
          for (std::size_t r = 0; r < ranks; ++r) {
            EXPECT_EQ(std::memcmp(found.data(), theirs.data() + r * size, size * sizeof(T)), 0)
                << "rank " << r;
          }
        }
      }
    }
  });
}

void every_reduction_reaches_the_root_and_the_parts(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  std::size_t const size = 70'001;  // several stages
  for_each_reduction<double>([&](ReduceOp op) {
    auto const in = values_of<double>(comm, comm.rank(), size, *stream);
    comm.reduce(in.view(), in.view(), op, Rank{0}, *stream);
    auto const found = in.fetch(*stream);
    if (comm.rank() == 0) {
      expect_reduction<double>(context, op.kind, found, text("reduce in place, ", to_string(op.kind)));
    }
  });
  Factor const factor(comm, comm.rank().value() + 0.5, *stream);
  double factors = 0;
  for (int r = 0; r < comm.size(); ++r) factors += r + 0.5;
  Elements<double> const ones(comm, size * static_cast<std::size_t>(comm.size()), 1.0);
  Elements<double> const part(comm, size);
  comm.reduce_scatter(ones.put(*stream), part.view(), factor.scaled_sum(), *stream);
  expect_elements<double>(
      part.fetch(*stream), [&](std::size_t) { return factors; }, "scaled reduce_scatter");
  comm.reduce(ones.view(), ones.view(), factor.scaled_sum(), Rank{0}, *stream);
  auto const found = ones.fetch(*stream);
  if (comm.rank() == 0) {
    expect_elements<double>(
        found, [&](std::size_t) { return factors; }, "scaled reduce");
  }
}

void reduce_gives_the_root_alone(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  for_each_reducible_type([&]<class T>(T) {
    for (std::size_t const size : sizes<T>()) {
      Rank const root{static_cast<int>(size) % comm.size()};
      auto const in = values_of<T>(comm, comm.rank(), size, *stream);
      Elements<T> const out(comm, size, to_element<T>(99));
      comm.reduce(in.view(), out.put(*stream), ReduceOp::sum(), root, *stream);
      expect_elements<T>(
          out.fetch(*stream),
          [&](std::size_t i) {
            return comm.rank() == root ? expected_reduction<T>(Kind::sum, comm.size(), i) : to_element<T>(99);
          },
          text("reduce of ", dtype_of<T>, "[", size, "]"));
    }
  });
}

void reduce_scatter_gives_each_rank_its_part(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const me = comm.rank().index();
  for_each_reducible_type([&]<class T>(T) {
    for_each_reduction<T>([&](ReduceOp op) {
      for (std::size_t const size : {std::size_t{0}, std::size_t{1}, kPart<T>}) {
        std::string const what =
            text("reduce_scatter ", to_string(op.kind), " of ", dtype_of<T>, "[", size, "]");
        auto const in = values_of<T>(comm, comm.rank(), size * ranks, *stream);
        Elements<T> const out(comm, size);
        comm.reduce_scatter(in.view(), out.view(), op, *stream);
        expect_reduction<T>(context, op.kind, out.fetch(*stream), what, me * size);
        comm.reduce_scatter(in.view(), in.part(me * size, size), op, *stream);
        expect_reduction<T>(context, op.kind, in.fetch(*stream).subspan(me * size, size), what + ", in place",
                            me * size);
      }
    });
  });
}

void all_gather_gives_everyone_everything(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : sizes<T>()) {
      auto const expected = [&](std::size_t i) {
        return to_element<T>(element_value(static_cast<int>(i / size), i % size));
      };
      auto const in = values_of<T>(comm, comm.rank(), size, *stream);
      Elements<T> const out(comm, size * ranks);
      comm.all_gather(in.view(), out.view(), *stream);
      expect_elements<T>(out.fetch(*stream), expected, text("all_gather of ", dtype_of<T>, "[", size, "]"));
      Elements<T> const both(comm, size * ranks);
      auto const begin = comm.rank().index() * size;
      fill_with_values(both.host().subspan(begin, size), comm.rank().value());
      static_cast<void>(both.put(*stream));
      comm.all_gather(both.part(begin, size), both.view(), *stream);
      expect_elements<T>(both.fetch(*stream), expected, "all_gather in place");
    }
  });
}

void all_to_all_transposes(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : {std::size_t{0}, std::size_t{1}, kPart<T>}) {
      auto const expected = [&](std::size_t i) {
        return to_element<T>(
            element_value(static_cast<int>(i / size), comm.rank().index() * size + i % size));
      };
      auto const in = values_of<T>(comm, comm.rank(), size * ranks, *stream);
      Elements<T> const out(comm, size * ranks);
      comm.all_to_all(in.view(), out.view(), *stream);
      expect_elements<T>(out.fetch(*stream), expected, text("all_to_all of ", dtype_of<T>, "[", size, "]"));
      comm.all_to_all(in.view(), in.view(), *stream);
      expect_elements<T>(in.fetch(*stream), expected, "all_to_all in place");
    }
  });
}

void broadcast_gives_everyone_the_roots(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : sizes<T>()) {
      for (int root = 0; root < comm.size(); ++root) {
        auto const values = values_of<T>(comm, comm.rank(), size, *stream);
        comm.broadcast(values.view(), Rank{root}, *stream);
        expect_elements<T>(
            values.fetch(*stream), [&](std::size_t i) { return to_element<T>(element_value(root, i)); },
            text("broadcast of ", dtype_of<T>, "[", size, "] from ", root));
      }
    }
  });
}

void integer_sums_wrap(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = context.stream();
  Elements<std::uint8_t> const bytes(comm, 5, 200);
  comm.all_reduce(bytes.put(*stream), ReduceOp::sum(), *stream);
  EXPECT_EQ(bytes.fetch(*stream)[4], static_cast<std::uint8_t>(200 * comm.size()));
  Elements<std::int32_t> const words(comm, 5, std::numeric_limits<std::int32_t>::max());
  comm.all_reduce(words.put(*stream), ReduceOp::sum(), *stream);
  EXPECT_EQ(words.fetch(*stream)[0], static_cast<std::int32_t>(static_cast<std::uint32_t>(0x7fffffffU) *
                                                               static_cast<std::uint32_t>(comm.size())));
}

}  // namespace

std::vector<ContractCase> collective_cases() {
  return {{"AllReduceOfEveryTypeAndOperation", &all_reduce_every_type_and_operation},
          {"AllReduceInAllocatedMemory", &all_reduce_in_allocated_memory},
          {"MemoryAllocatedOnSomeRanksOnly", &memory_on_some_ranks_allocated_on_others_not},
          {"AllocatedMemoryIsZeroedAndOutlivesItsCommunicator",
           &allocated_memory_is_zeroed_and_outlives_its_communicator},
          {"ScaledSumsUseEachRanksFactor", &scaled_sums_use_each_ranks_factor},
          {"SumsAreBitEqualOnEveryRankAndPath", &floating_sums_are_bit_equal_on_every_rank_and_path},
          {"AFactorOf0HidesWhateverStandsThere", &a_factor_of_0_hides_whatever_stands_there},
          {"MinAndMaxKeepANaN", &min_and_max_keep_a_nan},
          {"EveryReductionReachesTheRootAndTheParts", &every_reduction_reaches_the_root_and_the_parts},
          {"ReduceGivesTheRootAlone", &reduce_gives_the_root_alone},
          {"ReduceScatterGivesEachRankItsPart", &reduce_scatter_gives_each_rank_its_part},
          {"AllGatherGivesEveryoneEverything", &all_gather_gives_everyone_everything},
          {"AllToAllTransposes", &all_to_all_transposes},
          {"BroadcastGivesEveryoneTheRoots", &broadcast_gives_everyone_the_roots},
          {"IntegerSumsWrap", &integer_sums_wrap}};
}

std::vector<ContractCase> communicator_contract() {
  std::vector<ContractCase> all;
  for (auto const& part : {collective_cases(), average_cases(), exchange_cases(), group_cases(),
                           stream_cases(), failure_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace ddp::testing

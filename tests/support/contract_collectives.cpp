#include <cmath>
#include <limits>
#include <random>

#include "support/communicator_contract.hpp"

namespace ddp::testing {
namespace {

using Kind = ReduceOp::Kind;

// Empty, one, odd, a few cache lines, larger than the one-shot path, larger than staging and not a multiple.
constexpr std::size_t kSizes[] = {0, 1, 7, 1000, 20011, 300007};
constexpr DType kTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                            DType::i32, DType::i64, DType::u8};
constexpr Kind kKinds[] = {Kind::sum, Kind::product, Kind::min, Kind::max, Kind::average};

// Plain memory that starts one element off any nice alignment.
template <class T>
class Unaligned {
 public:
  explicit Unaligned(std::size_t count) : storage_(count + 1) {}
  [[nodiscard]] std::span<T> span() { return std::span(storage_).subspan(1); }

 private:
  std::vector<T> storage_;
};

template <class Body>
void for_each_type(Body body) {
  for (DType const dtype : kTypes) dispatch(dtype, body);
}

template <class T, class Body>
void for_each_reduction(Body body) {
  for (Kind const kind : kKinds) {
    if (kind == Kind::average && !is_floating(dtype_of<T>)) continue;
    body(ReduceOp{kind, nullptr});
  }
}

void all_reduce_every_type_and_operation(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  int const me = comm.rank().value();
  for_each_type([&]<class T>(T) {
    for_each_reduction<T>([&](ReduceOp op) {
      for (std::size_t const size : kSizes) {
        std::string const what = text(to_string(op.kind), " of ", dtype_of<T>, "[", size, "]");
        auto const expected = [&](std::size_t i) { return expected_reduction<T>(op.kind, comm.size(), i); };
        Unaligned<T> in(size);
        Unaligned<T> out(size);
        fill_with_values(in.span(), me);
        comm.all_reduce(view_of(in.span()), view_of(out.span()), op, *stream);
        expect_elements<T>(out.span(), expected, what);
        expect_elements<T>(
            in.span(), [&](std::size_t i) { return to_element<T>(element_value(me, i)); }, what + ", in");
        comm.all_reduce(view_of(in.span()), op, *stream);
        expect_elements<T>(in.span(), expected, what + ", in place");
      }
    });
  });
}

void all_reduce_in_allocated_memory(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::size_t const count = 3'000'017;  // past the size from which stores are streamed
  Tensor const memory = comm.allocate(Bytes{2 * count * sizeof(float)});
  auto* const elements = static_cast<float*>(memory.view().data);
  for (std::size_t const size : {std::size_t{1}, std::size_t{20011}, count}) {
    for (std::size_t const offset : {std::size_t{0}, std::size_t{1}, std::size_t{17}}) {
      if (offset + size > count) continue;
      std::span<float> const in(elements + offset, size);
      std::span<float> const out(elements + count, size);
      std::string const what = text("f32[", size, "] at ", offset);
      auto const expected = [&](std::size_t i) {
        return expected_reduction<float>(Kind::sum, comm.size(), i);
      };
      fill_with_values(in, comm.rank().value());
      comm.all_reduce(view_of(in), view_of(out), ReduceOp::sum(), *stream);
      expect_elements<float>(out, expected, what);
      comm.all_reduce(view_of(in), ReduceOp::sum(), *stream);
      expect_elements<float>(in, expected, what + ", in place");
    }
  }
}

void memory_on_some_ranks_allocated_on_others_not(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::size_t const size = 200003;
  Tensor const memory = comm.allocate(Bytes{size * sizeof(double)});
  std::vector<double> plain(size);
  std::span<double> const mine =
      comm.rank() == 0 ? std::span(static_cast<double*>(memory.view().data), size) : std::span(plain);
  fill_with_values(mine, comm.rank().value());
  comm.all_reduce(view_of(mine), ReduceOp::sum(), *stream);
  expect_elements<double>(
      mine, [&](std::size_t i) { return expected_reduction<double>(Kind::sum, comm.size(), i); },
      "mixed memory");
}

void allocated_memory_is_zeroed_and_outlives_its_communicator(ContractContext& context) {
  Tensor memory;
  {
    auto const child = context.make(std::chrono::seconds(60));
    memory = child->allocate(Bytes{100'000});
  }
  auto const bytes = memory.as<std::uint8_t>();
  ASSERT_EQ(bytes.size(), 100'000U);
  for (std::uint8_t const byte : bytes) ASSERT_EQ(byte, 0);
  std::fill(bytes.begin(), bytes.end(), std::uint8_t{7});
  EXPECT_EQ(bytes[99'999], 7);
  EXPECT_EQ(context.comm.allocate(Bytes{0}).as<std::uint8_t>().size(), 0U);
}

void scaled_sums_use_each_ranks_factor(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  double weights = 0;
  for (int r = 0; r < comm.size(); ++r) weights += r;
  if (weights == 0) weights = 1;
  double const factor = comm.size() == 1 ? 0.5 : comm.rank().value() / weights;  // rank 0: weight 0
  for (std::size_t const size : {std::size_t{3}, std::size_t{300007}}) {
    std::vector<double> wide(size);
    fill_with_values(std::span(wide), comm.rank().value());
    comm.all_reduce(view_of(std::span(wide)), ReduceOp::scaled_sum(factor), *stream);
    for (std::size_t i = 0; i < size; i += 997) {
      double expected = comm.size() == 1 ? 0.5 * element_value(0, i) : 0;
      for (int r = 1; r < comm.size(); ++r) expected += r / weights * element_value(r, i);
      ASSERT_NEAR(wide[i], expected, 1e-14 * expected) << i;
    }
    // Scaled before the sum: values near the type's limit do not overflow (R12).
    std::vector<float16> narrow(size, float16(60000.0F));
    double const share = 1.0 / comm.size();
    comm.all_reduce(view_of(std::span(narrow)), ReduceOp::scaled_sum(share), *stream);
    ASSERT_NEAR(static_cast<float>(narrow[size / 2]), 60000.0F, 32.0F);
  }
}

void floating_sums_are_bit_equal_on_every_rank_and_path(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::size_t const size = 100'003;
  std::mt19937 random(static_cast<unsigned>(comm.rank().value()) + 1);
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(random()) / 7.0F - 3e8F;
  std::vector<float> whole = values;
  comm.all_reduce(view_of(std::span(whole)), ReduceOp::sum(), *stream);
  std::vector<float> pieces = values;  // in small messages
  for (std::size_t offset = 0; offset < size; offset += 1000) {
    comm.all_reduce(view_of(std::span(pieces).subspan(offset, std::min<std::size_t>(1000, size - offset))),
                    ReduceOp::sum(), *stream);
  }
  EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), size * sizeof(float)), 0);
  std::vector<float> all(size * static_cast<std::size_t>(comm.size()));
  comm.all_gather(view_of(std::span(whole)), view_of(std::span(all)), *stream);
  for (std::size_t r = 0; r < static_cast<std::size_t>(comm.size()); ++r) {
    EXPECT_EQ(std::memcmp(whole.data(), all.data() + r * size, size * sizeof(float)), 0) << "rank " << r;
  }
}

// R4: weight 0 says that there is nothing to add, and the mean over no samples is NaN.
void a_factor_of_0_hides_whatever_stands_there(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  for_each_type([&]<class T>(T) {
    if constexpr (is_floating(dtype_of<T>)) {
      for (std::size_t const size : {std::size_t{5}, std::size_t{30'000}}) {
        bool const last = comm.rank().value() == comm.size() - 1;
        std::vector<T> values(size, last ? T(2.0F) : T(std::numeric_limits<float>::quiet_NaN()));
        double const factor = last ? 3.0 : 0.0;
        comm.all_reduce(view_of(std::span(values)), ReduceOp::scaled_sum(factor), *stream);
        expect_elements<T>(
            values, [](std::size_t) { return T(6.0F); }, text("NaN × 0 in ", dtype_of<T>));
        double const nothing = 0;
        comm.all_reduce(view_of(std::span(values)), ReduceOp::scaled_sum(nothing), *stream);
        expect_elements<T>(
            values, [](std::size_t) { return T(0.0F); }, "no rank has anything");
      }
    }
  });
}

void every_reduction_reaches_the_root_and_the_parts(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::size_t const size = 70'001;  // several stages
  for_each_reduction<double>([&](ReduceOp op) {
    std::vector<double> in(size);
    fill_with_values(std::span(in), comm.rank().value());
    comm.reduce(view_of(std::span(in)), view_of(std::span(in)), op, Rank{0}, *stream);
    if (comm.rank() == 0) {
      expect_elements<double>(
          in, [&](std::size_t i) { return expected_reduction<double>(op.kind, comm.size(), i); },
          text("reduce in place, ", to_string(op.kind)));
    }
  });
  double const factor = comm.rank().value() + 0.5;
  double factors = 0;
  for (int r = 0; r < comm.size(); ++r) factors += r + 0.5;
  std::vector<double> ones(size * static_cast<std::size_t>(comm.size()), 1.0);
  std::vector<double> part(size);
  comm.reduce_scatter(view_of(std::span(ones)), view_of(std::span(part)), ReduceOp::scaled_sum(factor),
                      *stream);
  expect_elements<double>(
      part, [&](std::size_t) { return factors; }, "scaled reduce_scatter");
  comm.reduce(view_of(std::span(ones)), view_of(std::span(ones)), ReduceOp::scaled_sum(factor), Rank{0},
              *stream);
  if (comm.rank() == 0) {
    expect_elements<double>(
        ones, [&](std::size_t) { return factors; }, "scaled reduce");
  }
}

void reduce_gives_the_root_alone(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : kSizes) {
      Rank const root{static_cast<int>(size) % comm.size()};
      std::vector<T> in(size);
      std::vector<T> out(size, to_element<T>(99));
      fill_with_values(std::span(in), comm.rank().value());
      comm.reduce(view_of(std::span(in)), view_of(std::span(out)), ReduceOp::sum(), root, *stream);
      expect_elements<T>(
          out,
          [&](std::size_t i) {
            return comm.rank() == root ? expected_reduction<T>(Kind::sum, comm.size(), i) : to_element<T>(99);
          },
          text("reduce of ", dtype_of<T>, "[", size, "]"));
    }
  });
}

void reduce_scatter_gives_each_rank_its_part(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  auto const me = comm.rank().index();
  for_each_type([&]<class T>(T) {
    for_each_reduction<T>([&](ReduceOp op) {
      for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{70001}}) {
        auto const expected = [&](std::size_t i) {
          return expected_reduction<T>(op.kind, comm.size(), me * size + i);
        };
        std::string const what =
            text("reduce_scatter ", to_string(op.kind), " of ", dtype_of<T>, "[", size, "]");
        std::vector<T> in(size * ranks);
        std::vector<T> out(size);
        fill_with_values(std::span(in), comm.rank().value());
        comm.reduce_scatter(view_of(std::span(in)), view_of(std::span(out)), op, *stream);
        expect_elements<T>(out, expected, what);
        auto const part = std::span(in).subspan(me * size, size);
        comm.reduce_scatter(view_of(std::span(in)), view_of(part), op, *stream);
        expect_elements<T>(part, expected, what + ", in place");
      }
    });
  });
}

void all_gather_gives_everyone_everything(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : kSizes) {
      auto const expected = [&](std::size_t i) {
        return to_element<T>(element_value(static_cast<int>(i / size), i % size));
      };
      std::vector<T> in(size);
      std::vector<T> out(size * ranks);
      fill_with_values(std::span(in), comm.rank().value());
      comm.all_gather(view_of(std::span(in)), view_of(std::span(out)), *stream);
      expect_elements<T>(out, expected, text("all_gather of ", dtype_of<T>, "[", size, "]"));
      std::vector<T> both(size * ranks);
      auto const mine = std::span(both).subspan(comm.rank().index() * size, size);
      fill_with_values(mine, comm.rank().value());
      comm.all_gather(view_of(mine), view_of(std::span(both)), *stream);
      expect_elements<T>(both, expected, "all_gather in place");
    }
  });
}

void all_to_all_transposes(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  auto const ranks = static_cast<std::size_t>(comm.size());
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : {std::size_t{0}, std::size_t{1}, std::size_t{70001}}) {
      auto const expected = [&](std::size_t i) {
        return to_element<T>(
            element_value(static_cast<int>(i / size), comm.rank().index() * size + i % size));
      };
      std::vector<T> in(size * ranks);
      std::vector<T> out(size * ranks);
      fill_with_values(std::span(in), comm.rank().value());
      comm.all_to_all(view_of(std::span(in)), view_of(std::span(out)), *stream);
      expect_elements<T>(out, expected, text("all_to_all of ", dtype_of<T>, "[", size, "]"));
      comm.all_to_all(view_of(std::span(in)), view_of(std::span(in)), *stream);
      expect_elements<T>(in, expected, "all_to_all in place");
    }
  });
}

void broadcast_gives_everyone_the_roots(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  for_each_type([&]<class T>(T) {
    for (std::size_t const size : kSizes) {
      for (int root = 0; root < comm.size(); ++root) {
        std::vector<T> values(size);
        fill_with_values(std::span(values), comm.rank().value());
        comm.broadcast(view_of(std::span(values)), Rank{root}, *stream);
        expect_elements<T>(
            values, [&](std::size_t i) { return to_element<T>(element_value(root, i)); },
            text("broadcast of ", dtype_of<T>, "[", size, "] from ", root));
      }
    }
  });
}

void integer_sums_wrap(ContractContext& context) {
  Communicator& comm = context.comm;
  auto const stream = HostStream::inline_stream();
  std::vector<std::uint8_t> bytes(5, 200);
  comm.all_reduce(view_of(std::span(bytes)), ReduceOp::sum(), *stream);
  EXPECT_EQ(bytes[4], static_cast<std::uint8_t>(200 * comm.size()));
  std::vector<std::int32_t> words(5, std::numeric_limits<std::int32_t>::max());
  comm.all_reduce(view_of(std::span(words)), ReduceOp::sum(), *stream);
  EXPECT_EQ(words[0], static_cast<std::int32_t>(static_cast<std::uint32_t>(0x7fffffffU) *
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
  for (auto const& part : {collective_cases(), group_cases(), failure_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace ddp::testing

// The kernel that multiplies by a factor, beside what the CPU does with one source.
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

// Less than a pack, packs alone, packs and a rest, more than all threads at once.
constexpr std::size_t kSizes[] = {0, 1, 3, 4, 64, 1001, 2'500'003};

template <class T>
void fill_with_numbers(std::span<T> elements) {
  std::mt19937 random(7);
  for (T& element : elements) element = to_element<T>((static_cast<double>(random()) - 2e9) / 3e6);
}

template <class T>
void expect_what_the_cpu_does(std::size_t size, std::size_t off, double by, bool in_place) {
  Communicator const& comm = world().communicator();
  auto const stream = make_compute_stream(comm.device());
  Elements<T> const in(comm, size, T{}, off);
  Elements<T> const other(comm, size, T{}, off == 0 ? 0 : 1);
  Elements<double> const factor(comm, 1, by);
  static_cast<void>(factor.put(*stream));
  fill_with_numbers(in.host());
  if (size > 3) {
    in.host()[1] = T(-0.0F);
    in.host()[2] = T(std::numeric_limits<float>::infinity());
  }
  std::vector<T> expected(size);
  ReduceSource const source{in.host().data(), by};
  void* const to = expected.data();
  reduce_elements({&to, 1}, {&source, 1}, size, dtype_of<T>, ReduceOp::Kind::sum, true);
  Elements<T> const& out = in_place ? in : other;
  static_cast<void>(in.put(*stream));
  cuda::scale_elements(out.view().data, in.view().data, size, dtype_of<T>,
                       static_cast<double const*>(factor.view().data), *stream);
  expect_elements<T>(
      out.fetch(*stream), [&](std::size_t i) { return expected[i]; },
      text(dtype_of<T>, "[", size, "] × ", by, ", ", off, " off", in_place ? ", in place" : ""));
}

TEST(ScaleElements, MultipliesAsTheCpuDoes) {
  for (DType const dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    dispatch(dtype, []<class T>(T) {
      if constexpr (is_floating(dtype_of<T>)) {
        for (std::size_t const size : kSizes) {
          for (std::size_t const off : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
            for (double const by : {1.0, 1.0 / 3.0, -0.125, 1e30}) {
              expect_what_the_cpu_does<T>(size, off, by, false);
              expect_what_the_cpu_does<T>(size, off, by, true);
            }
          }
        }
      }
    });
  }
}

// R4: the mean over no samples is NaN, and its weight 0.
TEST(ScaleElements, MakesZeroOfAnythingWithFactorZero) {
  Communicator const& comm = world().communicator();
  auto const stream = make_compute_stream(comm.device());
  for (DType const dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    dispatch(dtype, [&]<class T>(T) {
      if constexpr (is_floating(dtype_of<T>)) {
        Elements<T> const values(comm, 1001, T(std::numeric_limits<float>::quiet_NaN()));
        Elements<double> const zero(comm, 1, 0.0);
        static_cast<void>(zero.put(*stream));
        static_cast<void>(values.put(*stream));
        cuda::scale_elements(values.view().data, values.view().data, 1001, dtype,
                             static_cast<double const*>(zero.view().data), *stream);
        expect_elements<T>(
            values.fetch(*stream), [](std::size_t) { return T{}; }, text("NaN × 0 in ", dtype));
      }
    });
  }
}

TEST(ScaleElements, RefusesIntegers) {
  auto const stream = make_compute_stream(world().device());
  auto const error =
      error_of([&] { cuda::scale_elements(nullptr, nullptr, 0, DType::i32, nullptr, *stream); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ddp::testing

// What every communicator must do, as one suite. A backend's test gives it communicators; each case is called
// on every rank at once.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator_backend.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/core/text.hpp"
#include "support/contract/contract_memory.hpp"

namespace ddp::testing {

/// What a case may use on one rank.
struct ContractContext {
  Communicator& comm;
  /// Another communicator of the same ranks with this timeout. Collective.
  std::function<std::unique_ptr<Communicator>(std::chrono::milliseconds)> make;
  /// Whether elements are combined in rank order, with one rounding at the end, so that a result's bits
  /// depend on nothing else. NCCL promises less: only equal bits on every rank. It chooses an algorithm by
  /// size, rounds 16-bit types at each hop, and multiplies before it adds.
  bool in_rank_order = true;
  /// Whether ranks are told of a difference only when somebody asks and at a deadline, as GPU ranks of
  /// several hosts are.
  bool differences_are_asked_for = false;
  /// Whether min and max of floating point numbers pass over a NaN that other ranks do not have: NCCL's do.
  bool passes_over_nan = false;

  /// A new stream for the program's own work; on a CPU the calling thread itself.
  [[nodiscard]] std::unique_ptr<Stream> stream() const { return make_compute_stream(comm.device()); }
  /// Another communicator, whose deadline is far: only a difference that is not told otherwise meets it.
  [[nodiscard]] std::unique_ptr<Communicator> make_patient() const {
    return make(differences_are_asked_for ? std::chrono::seconds(2) : std::chrono::minutes(5));
  }
  /// The error of a `call` that differs between the ranks of `of`.
  template <class Call>
  [[nodiscard]] CommError difference_of(Communicator& of, Stream& stream, Call call) const {
    return failure_of(stream, [&] {
      call();
      stream.synchronize();
      Deadline const answered = Deadline::after(std::chrono::seconds(differences_are_asked_for ? 1 : 0));
      while (!answered.expired()) {
        backend_of(of).look_for_difference();
        stream.synchronize();
      }
    });
  }

  /// A new stream that never runs in the calling thread.
  [[nodiscard]] std::unique_ptr<Stream> side_stream() const { return make_comm_stream(comm.device()); }
};

struct ContractCase {
  char const* name;
  void (*run)(ContractContext&);
};

/// All cases; gtest names are made of their names.
[[nodiscard]] std::vector<ContractCase> communicator_contract();

// Parts of the suite, one file each.
[[nodiscard]] std::vector<ContractCase> collective_cases();
[[nodiscard]] std::vector<ContractCase> average_cases();
[[nodiscard]] std::vector<ContractCase> exchange_cases();
[[nodiscard]] std::vector<ContractCase> group_cases();
[[nodiscard]] std::vector<ContractCase> stream_cases();
[[nodiscard]] std::vector<ContractCase> failure_cases();

/// The number that stands at element `i` of rank `rank`: 1 to 5, so that sums, products and averages of few
/// ranks are exact in most types.
[[nodiscard]] inline int element_value(int rank, std::size_t i) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 7 + i * 3 + i / 64) % 5) + 1;
}

/// Calls body(T{}) with the type of every dtype.
template <class Body>
void for_each_type(Body body) {
  for (std::size_t dtype = 0; dtype < kDTypeCount; ++dtype) dispatch(static_cast<DType>(dtype), body);
}

/// With those that can be reduced.
template <class Body>
void for_each_reducible_type(Body body) {
  for_each_type([&]<class T>(T) {
    if constexpr (is_reducible(dtype_of<T>)) body(T{});
  });
}

/// Of a bool, whether it is odd.
template <class T>
[[nodiscard]] T to_element(double value) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return T(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return static_cast<std::int64_t>(value) % 2 != 0;
  } else {
    return static_cast<T>(
        static_cast<std::conditional_t<std::is_integral_v<T>, std::int64_t, double>>(value));
  }
}

template <class T>
[[nodiscard]] double as_double(T value) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <class T>
void fill_with_values(std::span<T> elements, int rank, std::size_t first = 0) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = to_element<T>(element_value(rank, first + i));
  }
}

/// `count` elements of rank `rank`, on the device too.
template <class T>
[[nodiscard]] Elements<T> values_of(Communicator const& comm, Rank rank, std::size_t count, Stream& stream,
                                    std::size_t off = 0) {
  Elements<T> elements(comm, count, T{}, off);
  fill_with_values(elements.host(), rank.value());
  static_cast<void>(elements.put(stream));
  return elements;
}

/// The simplest correct reduction: in rank order, in double, rounded once.
template <class T>
[[nodiscard]] T expected_reduction(ReduceOp::Kind kind, int ranks, std::size_t i) {
  double result = element_value(0, i);
  for (int r = 1; r < ranks; ++r) {
    double const value = element_value(r, i);
    switch (kind) {
      case ReduceOp::Kind::sum:
      case ReduceOp::Kind::average:
        result += value;
        break;
      case ReduceOp::Kind::product:
        result *= value;
        break;
      case ReduceOp::Kind::min:
        result = std::min(result, value);
        break;
      case ReduceOp::Kind::max:
        result = std::max(result, value);
        break;
    }
  }
  if (kind == ReduceOp::Kind::average) {
    return std::is_same_v<T, double> ? to_element<T>(result / ranks)
                                     : to_element<T>(static_cast<float>(result) / static_cast<float>(ranks));
  }
  return to_element<T>(result);
}

/// Fails the test, once, at the first element for which `right(found, expected)` does not hold.
template <class T, class Expected, class Right>
void expect_elements_by(std::span<T const> found, Expected expected, std::string const& what, Right right) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    T const wanted = expected(i);
    if (right(found[i], wanted)) continue;
    ADD_FAILURE() << what << ": element " << i << " of " << found.size() << " is " << as_double(found[i])
                  << ", expected " << as_double(wanted);
    return;
  }
}

/// The same, with equal bits.
template <class T, class Expected>
void expect_elements(std::span<T const> found, Expected expected, std::string const& what) {
  expect_elements_by(found, expected, what, [](T a, T b) { return std::memcmp(&a, &b, sizeof(T)) == 0; });
}

/// That `found` is the reduction of all ranks' values, from element `first` on. Where a backend rounds more
/// than once, products and averages of floating point numbers may be off by one rounding a rank and one more.
template <class T>
void expect_reduction(ContractContext const& context, ReduceOp::Kind kind, std::span<T const> found,
                      std::string const& what, std::size_t first = 0) {
  int const ranks = context.comm.size();
  auto const expected = [&](std::size_t i) { return expected_reduction<T>(kind, ranks, first + i); };
  bool const rounds =
      is_floating(dtype_of<T>) && (kind == ReduceOp::Kind::product || kind == ReduceOp::Kind::average);
  if (context.in_rank_order || !rounds) {
    expect_elements<T>(found, expected, what);
    return;
  }
  constexpr int kDigits = std::is_same_v<T, double>     ? 53
                          : std::is_same_v<T, float>    ? 24
                          : std::is_same_v<T, bfloat16> ? 8
                                                        : 11;
  double const tolerance = std::ldexp(ranks + 1, -kDigits);
  expect_elements_by(found, expected, what, [&](T a, T b) {
    return std::abs(as_double(a) - as_double(b)) <= tolerance * std::abs(as_double(b));
  });
}

}  // namespace ddp::testing

// What every communicator must do, as one suite. A backend's test gives it communicators; each case is called
// on every rank at once.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddp/comm/communicator.hpp"
#include "ddp/core/text.hpp"

namespace ddp::testing {

/// What a case may use on one rank.
struct ContractContext {
  Communicator& comm;
  /// Another communicator of the same ranks with this timeout. Collective.
  std::function<std::unique_ptr<Communicator>(std::chrono::milliseconds)> make;
};

struct ContractCase {
  char const* name;
  void (*run)(ContractContext&);
};

/// All cases; gtest names are made of their names.
[[nodiscard]] std::vector<ContractCase> communicator_contract();

// Parts of the suite, one file each.
[[nodiscard]] std::vector<ContractCase> collective_cases();
[[nodiscard]] std::vector<ContractCase> group_cases();
[[nodiscard]] std::vector<ContractCase> failure_cases();

/// The number that stands at element `i` of rank `rank`: 1 to 5, so that sums, products and averages of few
/// ranks are exact in most types.
[[nodiscard]] inline int element_value(int rank, std::size_t i) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 7 + i * 3 + i / 64) % 5) + 1;
}

template <class T>
[[nodiscard]] T to_element(double value) {
  if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(
        static_cast<std::conditional_t<std::is_integral_v<T>, std::int64_t, double>>(value));
  }
}

template <class T>
void fill_with_values(std::span<T> elements, int rank, std::size_t first = 0) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = to_element<T>(element_value(rank, first + i));
  }
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

/// Fails the test, once, at the first element that differs in its bits.
template <class T, class Expected>
void expect_elements(std::span<T const> found, Expected expected, std::string const& what) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    T const wanted = expected(i);
    if (std::memcmp(&found[i], &wanted, sizeof(T)) != 0) {
      auto const show = [](T const& v) {
        if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>) {
          return static_cast<double>(static_cast<float>(v));
        } else {
          return static_cast<double>(v);
        }
      };
      ADD_FAILURE() << what << ": element " << i << " of " << found.size() << " is " << show(found[i])
                    << ", expected " << show(wanted);
      return;
    }
  }
}

}  // namespace ddp::testing

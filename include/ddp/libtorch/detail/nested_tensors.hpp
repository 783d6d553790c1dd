// Tensors in vectors, maps, tuples, pairs, arrays and optionals, which DataParallel splits and puts together.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/text.hpp"

namespace DDP_EXPORT ddp {
namespace libtorch::detail {

/// A tensor and its place among the arguments: "input 1[0]".
struct NestedTensor {
  std::string where;  ///< for messages
  at::Tensor tensor;  ///< may be undefined
};

/// Which tensors a type can hold.
template <bool Some, bool All, bool Borrowed>
struct TensorsHeld {
  static constexpr bool some = Some;          ///< Whether there may be a tensor.
  static constexpr bool all = All;            ///< Whether there is nothing else.
  static constexpr bool borrowed = Borrowed;  ///< Whether tensors belong to somebody else.
};
/// Several types together.
template <class... Of>
using TensorsInEach = TensorsHeld<(Of::some || ...), (Of::all && ...), (Of::borrowed || ...)>;

/// Which ones `T` can hold: here none.
template <class T>
struct TensorsIn : TensorsHeld<false, false, false> {};
/// A tensor.
template <>
struct TensorsIn<at::Tensor> : TensorsHeld<true, true, false> {};
/// A view of a list of tensors, which cannot be rebuilt around parts.
template <class T>
struct TensorsIn<c10::ArrayRef<T>> : TensorsHeld<TensorsIn<T>::some, TensorsIn<T>::all, TensorsIn<T>::some> {
};
/// A vector.
template <class T, class Allocator>
struct TensorsIn<std::vector<T, Allocator>> : TensorsIn<T> {};
/// An optional value.
template <class T>
struct TensorsIn<std::optional<T>> : TensorsIn<T> {};
/// A map, whose keys are no tensors.
template <class T>
requires requires { typename T::mapped_type; }
struct TensorsIn<T> : TensorsIn<typename T::mapped_type> {};
/// A tuple.
template <class... T>
struct TensorsIn<std::tuple<T...>> : TensorsInEach<TensorsIn<T>...> {};
/// A pair.
template <class A, class B>
struct TensorsIn<std::pair<A, B>> : TensorsInEach<TensorsIn<A>, TensorsIn<B>> {};
/// An array.
template <class T, std::size_t N>
struct TensorsIn<std::array<T, N>> : TensorsIn<T> {};

/// The key of a map in a message, or its place where it has no text.
template <class Key>
std::string key_text(Key const& key, std::size_t place) {
  if constexpr (requires(std::ostream & out) { out << key; }) {
    return text(key);
  } else {
    return text(place);
  }
}

/// Calls visit(where, tensor) for every tensor in `value`, undefined ones too, always in the same order.
template <class T, class Visit>
void for_each_tensor(T& value, std::string const& where, Visit const& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (!TensorsIn<Plain>::some) {
    return;
  } else if constexpr (std::is_same_v<Plain, at::Tensor>) {
    visit(where, value);
  } else if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) for_each_tensor(*value, where, visit);
  } else if constexpr (requires { typename Plain::mapped_type; }) {
    std::size_t place = 0;
    for (auto& [key, each] : value)
      for_each_tensor(each, text(where, "[", key_text(key, place++), "]"), visit);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::size_t place = 0;
    std::apply([&](auto&... each) { (for_each_tensor(each, text(where, "[", place++, "]"), visit), ...); },
               value);
  } else {
    std::size_t place = 0;
    for (auto& each : value) for_each_tensor(each, text(where, "[", place++, "]"), visit);
  }
}

/// All tensors in `value`, in the order of for_each_tensor().
template <class T>
void collect_tensors(T const& value, std::string const& where, std::vector<NestedTensor>& found) {
  for_each_tensor(value, where, [&](std::string const& name, at::Tensor const& tensor) {
    found.push_back({name, tensor});
  });
}

/// A replica's part of an argument: a copy where it has tensors, otherwise the argument itself.
template <class T>
using PartOf = std::conditional_t<TensorsIn<T>::some, T, T const&>;

/// `value` with the tensors from `next` on in place of its own. Moves `next` behind them.
template <class T>
PartOf<T> with_tensors(T const& value, std::vector<at::Tensor>::const_iterator& next) {
  if constexpr (TensorsIn<T>::some) {
    T part = value;
    for_each_tensor(part, "", [&](std::string const& /*where*/, at::Tensor& tensor) { tensor = *next++; });
    return part;
  } else {
    return value;
  }
}

}  // namespace libtorch::detail
}  // namespace ddp

// What goes into a module and comes out of it: tensors, alone or nested in lists and maps, and anything else.
#pragma once

#include <concepts>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"

namespace DDP_EXPORT ddp {

/// Nothing, a tensor, a list, a map from names, or any other object. Copies share the contents, which are
/// immutable; elements of tensors are shared as with Tensor. Any thread.
class Value {
 public:
  /// Vectors, tuples and pairs become one. A list in a list is List{Value(List{…})}: where braces alone name
  /// both, some compilers copy the inner one.
  using List = std::vector<Value>;
  using Map = std::map<std::string, Value>;  ///< By name.
  /// What it holds.
  enum class Kind { none, tensor, list, map, other };

  Value() = default;  ///< Nothing.
  /// A tensor.
  Value(Tensor tensor) : held_(std::move(tensor)) {}
  /// A tensor that is borrowed: the value does not own the view's memory, and the program must keep it for as
  /// long as the value, a copy, or work that was enqueued with either uses it. A Tensor is shared instead.
  Value(TensorView const& view) : held_(Tensor(view, nullptr)) {}
  /// A list.
  Value(List list) : held_(std::make_shared<List const>(std::move(list))) {}
  /// A map.
  Value(Map map) : held_(std::make_shared<Map const>(std::move(map))) {}
  /// A vector of what converts to a Value.
  template <class T>
  requires(!std::same_as<T, Value>) Value(std::vector<T> const& elements)
      : Value(List(elements.begin(), elements.end())) {}
  /// A map of what converts to a Value.
  template <class T>
  requires(!std::same_as<T, Value>) Value(std::map<std::string, T> const& elements)
      : Value(Map(elements.begin(), elements.end())) {}
  /// A tuple of what converts to a Value.
  template <class... T>
  Value(std::tuple<T...> const& elements)
      : Value(std::apply([](auto const&... each) { return List{Value(each)...}; }, elements)) {}
  /// A pair of what converts to a Value.
  template <class A, class B>
  Value(std::pair<A, B> const& elements) : Value(List{Value(elements.first), Value(elements.second)}) {}

  /// Any other object. It is shared, never copied or moved between devices.
  template <class T>
  [[nodiscard]] static Value other(T object) {
    Value value;
    value.held_ = Other{std::make_shared<T const>(std::move(object)), &typeid(T)};
    return value;
  }

  [[nodiscard]] Kind kind() const noexcept { return static_cast<Kind>(held_.index()); }  ///< What it holds.
  [[nodiscard]] bool is_none() const noexcept { return kind() == Kind::none; }           ///< Nothing.
  [[nodiscard]] bool is_tensor() const noexcept { return kind() == Kind::tensor; }       ///< A tensor.
  [[nodiscard]] bool is_list() const noexcept { return kind() == Kind::list; }           ///< A list.
  [[nodiscard]] bool is_map() const noexcept { return kind() == Kind::map; }             ///< A map.

  // Each throws Error(invalid_argument), with what the value is, if it is of another kind.

  [[nodiscard]] Tensor const& tensor() const;                               ///< The tensor.
  [[nodiscard]] TensorView const& view() const { return tensor().view(); }  ///< The tensor's view.
  [[nodiscard]] List const& list() const;                                   ///< The list.
  [[nodiscard]] Map const& map() const;                                     ///< The map.
  [[nodiscard]] Value const& operator[](std::size_t index) const;           ///< Of a list.
  /// Of a map.
  template <class Name>
  requires std::convertible_to<Name const&, std::string_view>
  [[nodiscard]] Value const& operator[](Name const& name) const { return member(name); }
  /// The object that was passed to other<T>(). Also throws if it is not a T.
  template <class T>
  [[nodiscard]] T const& other() const {
    return *static_cast<T const*>(object(typeid(T)));
  }

  /// "f32[3,4] on cpu:0", "a list of 2", "a map of x, y", "another object", "nothing".
  [[nodiscard]] std::string description() const;
  [[nodiscard]] friend std::string describe(Value const& value) {
    return value.description();
  }  ///< The same.

 private:
  struct Other {
    std::shared_ptr<void const> object;
    std::type_info const* type = nullptr;
    friend bool operator==(Other const&, Other const&) = default;
  };
  [[nodiscard]] Value const& member(std::string_view name) const;
  [[nodiscard]] void const* object(std::type_info const& type) const;

  // In the order of Kind.
  std::variant<std::monostate, Tensor, std::shared_ptr<List const>, std::shared_ptr<Map const>, Other> held_;
};

/// "tensor".
[[nodiscard]] char const* to_string(Value::Kind kind) noexcept;

}  // namespace ddp

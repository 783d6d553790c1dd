#include "ddp/data_parallel/value.hpp"

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

[[noreturn]] void refuse(char const* expected, Value const& found) {
  throw Error(ErrorCode::invalid_argument, text("expected ", expected, ", found ", describe(found)));
}

}  // namespace

Tensor const& Value::tensor() const {
  if (auto const* const tensor = std::get_if<Tensor>(&held_)) return *tensor;
  refuse("a tensor", *this);
}

Value::List const& Value::list() const {
  if (auto const* const list = std::get_if<std::shared_ptr<List const>>(&held_)) return **list;
  refuse("a list", *this);
}

Value::Map const& Value::map() const {
  if (auto const* const map = std::get_if<std::shared_ptr<Map const>>(&held_)) return **map;
  refuse("a map", *this);
}

Value const& Value::operator[](std::size_t index) const {
  List const& all = list();
  require(index < all.size(), [&] { return text("element ", index, " of a list of ", all.size()); });
  return all[index];
}

Value const& Value::member(std::string_view name) const {
  Map const& all = map();
  auto const found = all.find(std::string(name));
  require(found != all.end(), [&] { return text("no \"", name, "\" in ", describe(*this)); });
  return found->second;
}

void const* Value::object(std::type_info const& type) const {
  auto const* const other = std::get_if<Other>(&held_);
  if (other == nullptr) refuse("another object", *this);
  require(*other->type == type, [&] {
    return text("expected an object of type ", type.name(), ", found one of type ", other->type->name());
  });
  return other->object.get();
}

char const* to_string(Value::Kind kind) noexcept {
  switch (kind) {
    case Value::Kind::none:
      return "nothing";
    case Value::Kind::tensor:
      return "tensor";
    case Value::Kind::list:
      return "list";
    case Value::Kind::map:
      return "map";
    case Value::Kind::other:
      return "another object";
  }
  return "unknown";
}

std::string Value::description() const {
  switch (kind()) {
    case Value::Kind::tensor:
      return describe(view());
    case Value::Kind::list:
      return text("a list of ", list().size());
    case Value::Kind::map: {
      std::vector<std::string> names;
      for (auto const& [name, element] : map()) names.push_back(name);
      return text("a map of ", names.empty() ? "nothing" : join(names, ", "));
    }
    default:
      return to_string(kind());
  }
}

}  // namespace ddp

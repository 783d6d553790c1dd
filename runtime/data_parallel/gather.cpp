#include "ddp/data_parallel/gather.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "data_parallel/scatter_plan.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Puts the values of all replicas together, member by member.
class Gatherer {
 public:
  // `memory_for` is given the value in the tensor's place, none if there is none.
  using MemoryFor = std::function<TensorPool&(Value const& like)>;
  Gatherer(MemoryFor memory_for, std::size_t dim, std::size_t replicas)
      : memory_for_(std::move(memory_for)), dim_(dim) {
    gathered_.copies.resize(replicas);
  }

  [[nodiscard]] Gathered run(std::vector<Value> const& values, Value const& like, std::string const& where) {
    gathered_.value = together(values, like, where);
    return std::move(gathered_);
  }

 private:
  [[noreturn]] static void refuse(std::vector<Value> const& values, std::size_t replica,
                                  std::string const& where, std::string const& rule) {
    throw Error(ErrorCode::invalid_argument,
                text("gather: ", where, " of replica ", replica, " is ", describe(values[replica]),
                     ", that of replica 0 is ", describe(values[0]), "; ", rule));
  }

  Value together(std::vector<Value> const& values, Value const& like, std::string const& where) {
    Value const& first = values[0];
    for (std::size_t r = 1; r < values.size(); ++r) {
      if (values[r].kind() != first.kind())
        refuse(values, r, where, "every replica must return values of the same kinds");
    }
    switch (first.kind()) {
      case Value::Kind::none:
        return {};
      case Value::Kind::tensor:
        return tensors(values, like, where);
      case Value::Kind::list:
        return lists(values, like, where);
      case Value::Kind::map:
        return maps(values, like, where);
      default:
        return Value::List(values);
    }
  }

  Value lists(std::vector<Value> const& values, Value const& like, std::string const& where) {
    Value::List all;
    for (std::size_t r = 1; r < values.size(); ++r) {
      if (values[r].list().size() != values[0].list().size())
        refuse(values, r, where, "every replica must return as many members");
    }
    for (std::size_t i = 0; i < values[0].list().size(); ++i)
      all.push_back(together(members(values, i), member(like, i), text(where, "[", i, "]")));
    return all;
  }

  Value maps(std::vector<Value> const& values, Value const& like, std::string const& where) {
    Value::Map all;
    auto const same_name = [](auto const& a, auto const& b) { return a.first == b.first; };
    for (std::size_t r = 1; r < values.size(); ++r) {
      Value::Map const& mine = values[r].map();
      Value::Map const& other = values[0].map();
      if (!std::equal(mine.begin(), mine.end(), other.begin(), other.end(), same_name))
        refuse(values, r, where, "every replica must return the same names");
    }
    for (auto const& [name, each] : values[0].map())
      all.emplace(name, together(members(values, name), member(like, name), text(where, "[\"", name, "\"]")));
    return all;
  }

  template <class Key>
  static std::vector<Value> members(std::vector<Value> const& values, Key const& key) {
    std::vector<Value> all;
    for (Value const& value : values) all.push_back(value[key]);
    return all;
  }

  static Value member(Value const& value, std::size_t index) {
    return value.is_list() && index < value.list().size() ? value.list()[index] : Value();
  }
  static Value member(Value const& value, std::string const& name) {
    if (!value.is_map()) return {};
    auto const found = value.map().find(name);
    return found == value.map().end() ? Value() : found->second;
  }

  Value tensors(std::vector<Value> const& values, Value const& like, std::string const& where) {
    TensorView const& first = values[0].view();
    bool const scalar = first.shape.dimensions() == 0;
    std::size_t const dim = scalar ? 0 : dim_;
    if (!scalar && dim >= first.shape.dimensions()) {
      throw Error(ErrorCode::invalid_argument,
                  text("gather: ", where, " of replica 0 is ", describe(first), ", which has no dimension ",
                       dim, "; DataParallelOptions::dim says along which one"));
    }
    std::size_t extent = 0;
    for (std::size_t r = 0; r < values.size(); ++r) {
      TensorView const& mine = values[r].view();
      if (mine.dtype != first.dtype || !shapes_fit(mine.shape, first.shape, dim)) {
        refuse(values, r, where,
               text("dtypes must be equal, and all extents but the one along dimension ", dim));
      }
      extent += scalar ? 1 : mine.shape[dim];
    }
    gathered_.scalars = gathered_.scalars || scalar;
    std::vector<std::size_t> extents(first.shape.extents().begin(), first.shape.extents().end());
    if (scalar) extents.push_back(0);
    extents[dim] = extent;
    Shape const shape{std::span<std::size_t const>(extents)};
    TensorPool& memory = memory_for_(like);
    gathered_.on_host = gathered_.on_host || memory.device().kind == DeviceKind::cpu;
    if (values.size() == 1 && first.device == memory.device()) {
      TensorView view = first;
      view.shape = shape;
      return Tensor(view, std::make_shared<Value>(values[0]));
    }
    return copied(values, memory.take(shape, first.dtype), dim);
  }

  Value copied(std::vector<Value> const& values, Tensor const& all, std::size_t dim) {
    Runs const to(all.view(), dim);
    auto* begin = static_cast<std::byte*>(all.view().data);
    for (std::size_t r = 0; r < values.size(); ++r) {
      TensorView const& mine = values[r].view();
      std::size_t const extent = mine.shape.dimensions() == 0 ? 1 : mine.shape[dim];
      std::size_t const width = extent * to.unit;
      gathered_.copies[r].push_back(
          {begin, mine.data, to.pitch, width, width, to.rows, all.view().device, mine.device});
      begin += width;
    }
    return all;
  }

  static bool shapes_fit(Shape const& a, Shape const& b, std::size_t dim) {
    if (a.dimensions() != b.dimensions()) return false;
    for (std::size_t i = 0; i < a.dimensions(); ++i) {
      if (i != dim && a[i] != b[i]) return false;
    }
    return true;
  }

  MemoryFor memory_for_;
  std::size_t dim_;
  Gathered gathered_;
};

}  // namespace

std::vector<Device> devices_of(Value const& value) {
  if (value.is_tensor()) return {value.view().device};
  std::vector<Device> all;
  auto const append = [&all](Value const& each) {
    std::vector<Device> const more = devices_of(each);
    all.insert(all.end(), more.begin(), more.end());
  };
  if (value.is_list()) std::for_each(value.list().begin(), value.list().end(), append);
  if (value.is_map()) {
    for (auto const& [name, each] : value.map()) append(each);
  }
  return all;
}

Device copying_device(Value const& value, Device to) {
  std::vector<Device> between = devices_of(value);
  between.insert(between.begin(), to);
  auto const gpu =
      std::find_if(between.begin(), between.end(), [](Device each) { return each.kind == DeviceKind::cuda; });
  return gpu == between.end() ? to : *gpu;
}

Gathered plan_gather(std::span<Value const> values, TensorPool& memory, std::size_t dim,
                     std::string const& where) {
  require(!values.empty(), "gather: at least one replica's output is needed, found none");
  auto const always = [&memory](Value const&) -> TensorPool& { return memory; };
  return Gatherer(always, dim, values.size()).run({values.begin(), values.end()}, {}, where);
}

Gathered plan_gather_like(Value const& like, std::span<Value const> values,
                          std::function<TensorPool&(Device)> const& memory_on, Device otherwise,
                          std::size_t dim, std::string const& where) {
  auto const beside = [&](Value const& each) -> TensorPool& {
    return memory_on(each.is_tensor() ? each.view().device : otherwise);
  };
  return Gatherer(beside, dim, values.size()).run({values.begin(), values.end()}, like, where);
}

std::string scalar_warning(std::size_t replicas) {
  return text(
      "gather: every replica returned a scalar; they become a vector with one element for each of the ",
      replicas, replicas == 1 ? " replica" : " replicas", ", and not a scalar: add them up, or average");
}

Value gather(std::span<Value const> outputs, Device device, std::size_t dim) {
  std::shared_ptr<Stream> const stream = make_compute_stream(device);
  TensorPool memory(device, stream);
  Gathered gathered = plan_gather(outputs, memory, dim, "the output");
  if (gathered.scalars) log(LogLevel::warning, scalar_warning(outputs.size()));
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    auto const from = make_compute_stream(copying_device(outputs[r], device));
    run_copies(gathered.copies[r], *from);
    from->synchronize();
  }
  return gathered.value;
}

}  // namespace ddp

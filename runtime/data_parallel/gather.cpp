#include "ddp/data_parallel/gather.hpp"

#include <algorithm>
#include <utility>

#include "data_parallel/scatter_plan.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// Puts the values of all replicas together, member by member.
class Gatherer {
 public:
  Gatherer(MemoryFor const& memory_for, std::size_t dim, std::size_t replicas)
      : memory_for_(memory_for), dim_(dim) {
    gathered_.copies.resize(replicas);
  }

  [[nodiscard]] Gathered run(std::vector<Value> const& values, Value const& like, std::string const& where) {
    std::vector<Value> all = values;
    all.push_back(like);
    gathered_.value = visit_members(all, where, [this](std::vector<Value> each, std::string const& name) {
      Value const beside = std::move(each.back());
      each.pop_back();
      return together(each, beside, name);
    });
    return std::move(gathered_);
  }

 private:
  // Throws unless every replica's value is like replica 0's.
  template <class Alike>
  static void require_all(std::vector<Value> const& values, std::string const& where, std::string const& rule,
                          Alike const& alike) {
    for (std::size_t r = 1; r < values.size(); ++r) {
      if (alike(values[r], values[0])) continue;
      throw Error(ErrorCode::invalid_argument,
                  text("gather: ", where, " of replica ", r, " is ", describe(values[r]),
                       ", that of replica 0 is ", describe(values[0]), "; ", rule));
    }
  }

  Value together(std::vector<Value> const& values, Value const& like, std::string const& where) {
    Value const& first = values[0];
    require_all(values, where, "every replica must return values of the same kinds",
                [](Value const& a, Value const& b) { return a.kind() == b.kind(); });
    if (first.is_list()) {
      require_all(values, where, "every replica must return as many members",
                  [](Value const& a, Value const& b) { return a.list().size() == b.list().size(); });
    } else if (first.is_map()) {
      require_all(values, where, "every replica must return the same names",
                  [](Value const& a, Value const& b) {
                    return std::ranges::equal(a.map(), b.map(), [](auto const& one, auto const& other) {
                      return one.first == other.first;
                    });
                  });
    }
    if (first.is_tensor()) return tensors(values, like, where);
    return first.kind() == Value::Kind::other ? Value(values) : Value();
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
    require_all(values, where,
                text("dtypes must be equal, and all extents but the one along dimension ", dim),
                [&](Value const& a, Value const& b) {
                  return a.view().dtype == b.view().dtype && shapes_fit(a.view().shape, b.view().shape, dim);
                });
    std::size_t extent = 0;
    for (Value const& value : values) extent += scalar ? 1 : value.view().shape[dim];
    Shape const shape = scalar ? Shape{extent} : with_extent(first.shape, dim, extent);
    gathered_.scalars = gathered_.scalars || scalar;
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

  MemoryFor const& memory_for_;
  std::size_t dim_;
  Gathered gathered_;
};

}  // namespace

std::vector<Device> devices_of(Value const& value) {
  std::vector<Device> all;
  static_cast<void>(visit_members({value}, "", [&](auto const& values, std::string const& /*name*/) -> Value {
    if (values[0].is_tensor()) all.push_back(values[0].view().device);
    return {};
  }));
  return all;
}

Device copying_device(Value const& value, Device to) {
  std::vector<Device> between = devices_of(value);
  between.insert(between.begin(), to);
  auto const gpu = std::ranges::find(between, DeviceKind::cuda, &Device::kind);
  return gpu == between.end() ? to : *gpu;
}

Gathered plan_gather(std::span<Value const> values, MemoryFor const& memory_for, std::size_t dim,
                     std::string const& where, Value const& like) {
  require(!values.empty(), "gather: at least one replica's output is needed, found none");
  return Gatherer(memory_for, dim, values.size()).run({values.begin(), values.end()}, like, where);
}

std::string scalar_warning(std::size_t replicas) {
  return text(
      "gather: every replica returned a scalar; they become a vector with one element for each of the ",
      replicas, replicas == 1 ? " replica" : " replicas", ", and not a scalar: add them up, or average");
}

Value gather(std::span<Value const> outputs, Device device, std::size_t dim) {
  std::shared_ptr<Stream> const stream = make_compute_stream(device);
  TensorPool memory(device, stream);
  Gathered gathered = plan_gather(
      outputs, [&](Value const& /*like*/) -> TensorPool& { return memory; }, dim, "the output");
  if (gathered.scalars) log(LogLevel::warning, scalar_warning(outputs.size()));
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    auto const from = make_compute_stream(copying_device(outputs[r], device));
    run_copies(gathered.copies[r], *from);
    from->synchronize();
  }
  return gathered.value;
}

}  // namespace ddp

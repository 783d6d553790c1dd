// What scatter and gather have in common: the parts of a value, and the copies that fill them. Each byte is
// copied once at most.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data_parallel/tensor_pool.hpp"
#include "ddp/core/text.hpp"
#include "ddp/data_parallel/value.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp {

using BlockCopies = std::vector<BlockCopy>;

/// A value's parts on their devices. Part i is complete when copies[i] are done; a tensor that lies on its
/// device already and is dense there is a view of the input.
struct Scattered {
  std::vector<Value> parts;
  std::vector<BlockCopies> copies;
  std::vector<std::size_t> rows;      ///< of each part's first tensor along the dimension; 0 without tensors
  std::optional<std::size_t> extent;  ///< their sum; nullopt without tensors
};

/// Chunks of `input` for at most as many devices as there are memories, at least one. `where` stands in
/// messages: "input". Throws Error(invalid_argument).
[[nodiscard]] Scattered plan_scatter(Value const& input, std::span<TensorPool> memories, std::size_t dim,
                                     std::string const& where);

/// The extent along `dim` of the first tensor of `input`, nullopt without tensors. Errors as plan_scatter().
[[nodiscard]] std::optional<std::size_t> extent_of(Value const& input, std::size_t dim,
                                                   std::string const& where);

/// The parts of `gathered`, the gradient of what plan_gather() made of `outputs`, each of the size of its
/// output. Throws Error(invalid_argument) if the gradient has not the shape of what was gathered.
[[nodiscard]] Scattered plan_split(Value const& gathered, std::span<Value const> outputs,
                                   std::span<TensorPool> memories, std::size_t dim);

/// Where the tensors of a value lie, in their order.
[[nodiscard]] std::vector<Device> devices_of(Value const& value);

/// The device whose stream can copy `value` to `to`: a GPU among those involved, if there is one.
[[nodiscard]] Device copying_device(Value const& value, Device to);

/// Values put together: complete when all copies are done; copies[i] are those of value i.
struct Gathered {
  Value value;
  std::vector<BlockCopies> copies;
  bool scalars = false;  ///< some were gathered
  bool on_host = false;  ///< some tensors of it lie in host memory
};

/// The memory for a gathered tensor. `like` is the value in its place in a value of the same structure, or
/// none.
using MemoryFor = std::function<TensorPool&(Value const& like)>;

/// `values` of replicas 0, 1, …, put together. A single value that is in place already is not copied.
/// `where`: "the output". Throws Error(invalid_argument) naming the replica that differs from replica 0.
[[nodiscard]] Gathered plan_gather(std::span<Value const> values, MemoryFor const& memory_for,
                                   std::size_t dim, std::string const& where, Value const& like = {});

/// Enqueues the copies.
inline void run_copies(BlockCopies const& copies, Stream& stream) {
  for (BlockCopy const& copy : copies) copy_block(copy, stream);
}

/// What a program is told about gathered scalars.
[[nodiscard]] std::string scalar_warning(std::size_t replicas);

/// The member of that index or name; nothing where there is none.
[[nodiscard]] inline Value member(Value const& value, std::size_t index) {
  return value.is_list() && index < value.list().size() ? value[index] : Value();
}
[[nodiscard]] inline Value member(Value const& value, std::string const& name) {
  return value.is_map() && value.map().contains(name) ? value[name] : Value();
}

/// Calls visit(values, name) for the whole, then for each member of values[0] with those in the same place of
/// the others (nothing where they have none), in order. Returns values[0] with what `visit` returned in place
/// of all that is no list and no map. `where` is the name of the whole: `input` has the member
/// `input[1]["mask"]`.
template <class Visit>
Value visit_members(std::vector<Value> const& values, std::string const& where, Visit const& visit) {
  Value made = visit(values, where);
  auto const of = [&](auto const& key, std::string const& name) {
    std::vector<Value> members;
    for (Value const& each : values) members.push_back(member(each, key));
    return visit_members(members, name, visit);
  };
  if (values[0].is_list()) {
    Value::List all;
    for (std::size_t i = 0; i < values[0].list().size(); ++i) all.push_back(of(i, text(where, "[", i, "]")));
    return all;
  }
  if (values[0].is_map()) {
    Value::Map all;
    for (auto const& [name, each] : values[0].map())
      all.emplace(name, of(name, text(where, "[\"", name, "\"]")));
    return all;
  }
  return made;
}

/// `shape` with another extent along `dim`.
[[nodiscard]] Shape with_extent(Shape const& shape, std::size_t dim, std::size_t extent);

/// A tensor as runs of memory along a dimension.
struct Runs {
  Runs(TensorView const& tensor, std::size_t dim);
  std::size_t rows = 1;   ///< product of the extents before the dimension
  std::size_t pitch = 0;  ///< bytes from one run to the next
  std::size_t unit = 0;   ///< bytes of one index in a run
};

}  // namespace ddp

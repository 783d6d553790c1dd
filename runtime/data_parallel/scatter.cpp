#include "ddp/data_parallel/scatter.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "data_parallel/scatter_plan.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

Runs::Runs(TensorView const& tensor, std::size_t dim) : unit(size_of(tensor.dtype)) {
  auto const extents = tensor.shape.extents();
  for (std::size_t i = 0; i < dim; ++i) rows *= extents[i];
  for (std::size_t i = dim + 1; i < extents.size(); ++i) unit *= extents[i];
  pitch = unit * extents[dim];
}

Shape with_extent(Shape const& shape, std::size_t dim, std::size_t extent) {
  std::vector<std::size_t> extents(shape.extents().begin(), shape.extents().end());
  extents[dim] = extent;
  return Shape(std::span<std::size_t const>(extents));
}

namespace {

std::size_t ceil_divide(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Indices [first, first + count) of `whole` along `dim`, on the memory's device.
Value take_part(Tensor const& whole, std::size_t dim, std::size_t first, Shape const& shape,
                std::size_t count, TensorPool& memory, BlockCopies& copies) {
  TensorView const& from = whole.view();
  Runs const runs(from, dim);
  auto* const begin = static_cast<std::byte*>(from.data) + first * runs.unit;
  if (from.device == memory.device() && runs.rows == 1) {
    return Tensor({begin, shape, from.dtype, from.device}, std::make_shared<Tensor>(whole));
  }
  Tensor part = memory.take(shape, from.dtype);
  copies.push_back({part.view().data, begin, count * runs.unit, runs.pitch, count * runs.unit, runs.rows,
                    memory.device(), from.device});
  return part;
}

struct Chunks {
  std::size_t count = 1;
  std::optional<std::size_t> extent;  ///< of the first tensor
};

// How many chunks there are, on which all tensors agree.
Chunks chunks_of(Value const& input, std::size_t devices, std::size_t dim, std::string const& where) {
  Chunks chunks;
  std::string first;
  bool anything = false;
  static_cast<void>(visit_members({input}, where, [&](auto const& values, std::string const& name) -> Value {
    Value const& leaf = values[0];
    anything = anything || leaf.is_tensor() || leaf.kind() == Value::Kind::other;
    if (!leaf.is_tensor()) return {};
    TensorView const& tensor = leaf.view();
    require(dim < tensor.shape.dimensions(), [&] {
      return text("scatter: ", name, " is ", describe(tensor), ", which has no dimension ", dim,
                  " to be split along; give it one, or pass what every replica is to share as "
                  "ddp::Value::other()");
    });
    std::size_t const extent = tensor.shape[dim];
    std::size_t const count = extent == 0 ? 1 : ceil_divide(extent, ceil_divide(extent, devices));
    if (!chunks.extent) {
      chunks = {count, extent};
      first = text(name, " (", describe(tensor), ")");
    }
    require(count == chunks.count, [&] {
      return text("scatter: along dimension ", dim, " and over ", devices, " devices, ", first,
                  " falls into ", chunks.count, chunks.count == 1 ? " chunk" : " chunks", " and ", name, " (",
                  describe(tensor), ") into ", count,
                  "; every tensor needs as many chunks as the others: give them the same extent there, or "
                  "pass what every replica is to share as ddp::Value::other()");
    });
    return {};
  }));
  if (!chunks.extent && anything) chunks.count = devices;
  return chunks;
}

Value chunk(Value const& value, std::size_t index, std::size_t devices, std::size_t dim, TensorPool& memory,
            BlockCopies& copies) {
  return visit_members({value}, "", [&](auto const& values, std::string const& /*name*/) -> Value {
    if (!values[0].is_tensor()) return values[0];
    Shape const& shape = values[0].view().shape;
    std::size_t const size = ceil_divide(shape[dim], devices);
    std::size_t const first = std::min(index * size, shape[dim]);
    std::size_t const count = std::min(size, shape[dim] - first);
    return take_part(values[0].tensor(), dim, first, with_extent(shape, dim, count), count, memory, copies);
  });
}

// Replica `index`'s part of a tensor of the gradient of the gathered output. `outputs` are those in its
// place.
Value split(Tensor const& gradient, std::span<Value const> outputs, std::size_t index, std::size_t split_dim,
            TensorPool& memory, BlockCopies& copies, std::string const& where) {
  TensorView const& output = outputs[index].view();
  Shape const& mine = output.shape;
  bool const scalar = mine.dimensions() == 0;
  std::size_t const dim = scalar ? 0 : split_dim;
  std::size_t first = 0;
  std::size_t all = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::size_t const extent = scalar ? 1 : outputs[i].view().shape[dim];
    if (i < index) first += extent;
    all += extent;
  }
  Shape const expected = scalar ? Shape{all} : with_extent(mine, dim, all);
  // A single replica's scalar may have stayed a scalar.
  bool const alone = scalar && outputs.size() == 1 && gradient.view().shape == mine;
  require((gradient.view().shape == expected || alone) && gradient.view().dtype == output.dtype, [&] {
    return text("backward: the gradient of ", where, " is ", describe(gradient), ", expected ", output.dtype,
                expected, ", as the output was gathered");
  });
  TensorView flat = gradient.view();
  if (alone) flat.shape = Shape{1};
  return take_part(Tensor(flat, std::make_shared<Tensor>(gradient)), dim, first, mine, scalar ? 1 : mine[dim],
                   memory, copies);
}

}  // namespace

Scattered plan_scatter(Value const& input, std::span<TensorPool> memories, std::size_t dim,
                       std::string const& where) {
  require(!memories.empty(), "scatter: at least one device is needed, found none");
  Chunks const chunks = chunks_of(input, memories.size(), dim, where);
  std::size_t const extent = chunks.extent.value_or(0);
  std::size_t const size = ceil_divide(extent, memories.size());
  Scattered scattered;
  scattered.extent = chunks.extent;
  for (std::size_t i = 0; i < chunks.count; ++i) {
    BlockCopies& copies = scattered.copies.emplace_back();
    scattered.parts.push_back(chunk(input, i, memories.size(), dim, memories[i], copies));
    scattered.rows.push_back(std::min(size, extent - std::min(i * size, extent)));
  }
  return scattered;
}

std::optional<std::size_t> extent_of(Value const& input, std::size_t dim, std::string const& where) {
  return chunks_of(input, 1, dim, where).extent;
}

Scattered plan_split(Value const& gathered, std::span<Value const> outputs, std::span<TensorPool> memories,
                     std::size_t dim) {
  std::vector<Value> all{gathered};
  all.insert(all.end(), outputs.begin(), outputs.end());
  Scattered scattered;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    BlockCopies& copies = scattered.copies.emplace_back();
    auto const part = [&](std::vector<Value> const& values, std::string const& where) -> Value {
      Value const& gradient = values[0];
      Value const& mine = values[i + 1];
      if (gradient.is_none()) return {};
      require(
          gradient.kind() == mine.kind() && (!mine.is_list() || gradient.list().size() == mine.list().size()),
          [&] {
            return text("backward: the gradient of ", where, " is ", describe(gradient), ", the output is ",
                        describe(mine), "; a gradient has the structure of its output");
          });
      if (!mine.is_tensor()) return {};
      return split(gradient.tensor(), std::span(values).subspan(1), i, dim, memories[i], copies, where);
    };
    scattered.parts.push_back(visit_members(all, "the output", part));
  }
  return scattered;
}

std::vector<Value> scatter(Value const& input, std::span<Device const> devices, std::size_t dim) {
  std::vector<std::shared_ptr<Stream>> streams;
  std::vector<TensorPool> memories;
  for (Device const device : devices) {
    memories.emplace_back(device, streams.emplace_back(make_compute_stream(copying_device(input, device))));
  }
  Scattered scattered = plan_scatter(input, memories, dim, "input");
  for (std::size_t i = 0; i < scattered.parts.size(); ++i) run_copies(scattered.copies[i], *streams[i]);
  for (auto const& stream : streams) stream->synchronize();
  return std::move(scattered.parts);
}

}  // namespace ddp

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
  bool any_tensor = false;
  std::size_t extent = 0;  ///< of the first tensor
};

// How many chunks there are, on which all tensors agree.
Chunks chunks_of(Value const& input, std::size_t devices, std::size_t dim, std::string const& where) {
  Chunks chunks;
  std::string first;
  bool anything = false;
  for_each_leaf(input, where, [&](Value const& leaf, std::string const& name) {
    anything = anything || !leaf.is_none();
    if (!leaf.is_tensor()) return;
    TensorView const& tensor = leaf.view();
    require(dim < tensor.shape.dimensions(), [&] {
      return text("scatter: ", name, " is ", describe(tensor), ", which has no dimension ", dim,
                  " to be split along; give it one, or pass what every replica is to share as "
                  "ddp::Value::other()");
    });
    std::size_t const extent = tensor.shape[dim];
    std::size_t const count = extent == 0 ? 1 : ceil_divide(extent, ceil_divide(extent, devices));
    if (!chunks.any_tensor) {
      chunks = {count, true, extent};
      first = text(name, " (", describe(tensor), ")");
    }
    require(count == chunks.count, [&] {
      return text("scatter: along dimension ", dim, " and over ", devices, " devices, ", first,
                  " falls into ", chunks.count, chunks.count == 1 ? " chunk" : " chunks", " and ", name, " (",
                  describe(tensor), ") into ", count,
                  "; every tensor needs as many chunks as the others: give them the same extent there, or "
                  "pass what every replica is to share as ddp::Value::other()");
    });
  });
  if (!chunks.any_tensor && anything) chunks.count = devices;
  return chunks;
}

Value chunk(Value const& value, std::size_t index, std::size_t devices, std::size_t dim, TensorPool& memory,
            BlockCopies& copies) {
  auto const of = [&](Value const& each) { return chunk(each, index, devices, dim, memory, copies); };
  if (value.is_list()) {
    Value::List parts;
    for (Value const& each : value.list()) parts.push_back(of(each));
    return parts;
  }
  if (value.is_map()) {
    Value::Map parts;
    for (auto const& [name, each] : value.map()) parts.emplace(name, of(each));
    return parts;
  }
  if (!value.is_tensor()) return value;
  Shape const& shape = value.view().shape;
  std::size_t const size = ceil_divide(shape[dim], devices);
  std::size_t const first = std::min(index * size, shape[dim]);
  std::size_t const count = std::min(size, shape[dim] - first);
  return take_part(value.tensor(), dim, first, with_extent(shape, dim, count), count, memory, copies);
}

// Replica `index`'s part of the gradient of the gathered output.
class Split {
 public:
  Split(std::size_t index, std::size_t dim, TensorPool& memory, BlockCopies& copies)
      : index_(index), dim_(dim), memory_(memory), copies_(copies) {}

  [[nodiscard]] Value part(Value const& gradient, std::vector<Value> const& outputs,
                           std::string const& where) {
    if (gradient.is_none()) return {};
    Value const& mine = outputs[index_];
    require(gradient.kind() == mine.kind(), [&] {
      return text("backward: the gradient of ", where, " is ", describe(gradient), ", the output is ",
                  describe(mine), "; a gradient has the structure of its output");
    });
    if (mine.is_tensor()) return part(gradient.tensor(), outputs, where);
    if (mine.is_list()) {
      Value::List parts;
      require(gradient.list().size() == mine.list().size(), [&] {
        return text("backward: the gradient of ", where, " is ", describe(gradient), ", the output is ",
                    describe(mine));
      });
      for (std::size_t i = 0; i < mine.list().size(); ++i)
        parts.push_back(part(gradient[i], members_of(outputs, i), text(where, "[", i, "]")));
      return parts;
    }
    if (mine.is_map()) {
      Value::Map parts;
      for (auto const& [name, each] : gradient.map())
        parts.emplace(name, part(each, members_of(outputs, name), text(where, "[\"", name, "\"]")));
      return parts;
    }
    return {};
  }

 private:
  [[nodiscard]] Value part(Tensor const& gradient, std::vector<Value> const& outputs,
                           std::string const& where) {
    Shape const& mine = outputs[index_].view().shape;
    bool const scalar = mine.dimensions() == 0;
    std::size_t const dim = scalar ? 0 : dim_;
    std::size_t first = 0;
    std::size_t all = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      std::size_t const extent = scalar ? 1 : outputs[i].view().shape[dim];
      if (i < index_) first += extent;
      all += extent;
    }
    Shape const expected = scalar ? Shape{all} : with_extent(mine, dim, all);
    // A single replica's scalar may have stayed a scalar.
    bool const alone = scalar && outputs.size() == 1 && gradient.view().shape == mine;
    require(
        (gradient.view().shape == expected || alone) && gradient.view().dtype == outputs[index_].view().dtype,
        [&] {
          return text("backward: the gradient of ", where, " is ", describe(gradient), ", expected ",
                      outputs[index_].view().dtype, expected, ", as the output was gathered");
        });
    TensorView flat = gradient.view();
    if (alone) flat.shape = Shape{1};
    return take_part(Tensor(flat, std::make_shared<Tensor>(gradient)), dim, first, mine,
                     scalar ? 1 : mine[dim], memory_, copies_);
  }

  std::size_t index_;
  std::size_t dim_;
  TensorPool& memory_;
  BlockCopies& copies_;
};

}  // namespace

Scattered plan_scatter(Value const& input, std::span<TensorPool> memories, std::size_t dim,
                       std::string const& where) {
  require(!memories.empty(), "scatter: at least one device is needed, found none");
  Chunks const chunks = chunks_of(input, memories.size(), dim, where);
  Scattered scattered;
  std::size_t const size = ceil_divide(chunks.extent, memories.size());
  for (std::size_t i = 0; i < chunks.count; ++i) {
    BlockCopies& copies = scattered.copies.emplace_back();
    scattered.parts.push_back(chunk(input, i, memories.size(), dim, memories[i], copies));
    scattered.rows.push_back(std::min(size, chunks.extent - std::min(i * size, chunks.extent)));
  }
  return scattered;
}

std::optional<std::size_t> extent_of(Value const& input, std::size_t dim, std::string const& where) {
  Chunks const whole = chunks_of(input, 1, dim, where);
  return whole.any_tensor ? std::optional(whole.extent) : std::nullopt;
}

Scattered plan_split(Value const& gathered, std::span<Value const> outputs, std::span<TensorPool> memories,
                     std::size_t dim) {
  std::vector<Value> const all(outputs.begin(), outputs.end());
  Scattered scattered;
  for (std::size_t i = 0; i < all.size(); ++i) {
    BlockCopies& copies = scattered.copies.emplace_back();
    scattered.parts.push_back(Split(i, dim, memories[i], copies).part(gathered, all, "the output"));
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

#include "checkpoint/checkpoint_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/tensor_layout.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

void require_row_major(char const* what, NamedTensor const& tensor) {
  if (tensor.strides.empty()) return;
  std::string const whole = text(what, " \"", tensor.name, "\"");
  require(layout_of(whole, tensor.value, tensor.strides) == layout_of(whole, tensor.value, {}), [&] {
    return text(whole, " has strides [", join(tensor.strides, ","),
                "], and safetensors files hold row-major tensors: hand in a row-major copy as NamedTensor");
  });
}

void check_place(std::string const& name, TensorView const& value, Device device) {
  require(value.device == device || value.device.kind == DeviceKind::cpu, [&] {
    return text("checkpoint: tensor \"", name, "\" is ", describe(value), ", expected on ", device,
                " or in host memory");
  });
}

// Elements of one part of one rank, as all ranks see it.
struct PlacedPart {
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t rank = 0;
};

// "" if each element of `tensor` is in one of `parts`, which may be in any order.
std::string misplaced(ShardedTensor const& tensor, std::vector<PlacedPart>& parts) {
  std::ranges::sort(parts, {}, &PlacedPart::begin);
  std::size_t const whole = tensor.shape.count();
  auto const elements = [](std::size_t begin, std::size_t end) {
    return text("elements ", begin, " to ", end - 1, " are ");
  };
  PlacedPart before;  // the one that reaches furthest
  std::size_t end = 0;
  for (PlacedPart const& part : parts) {
    if (part.begin > whole || part.count > whole - part.begin) {
      return text("a part of rank ", part.rank, " has ", part.count, " elements from ", part.begin,
                  " on, and there are ", whole);
    }
    if (part.begin < end) {
      return text(elements(part.begin, std::min(end, part.begin + part.count)), "in parts of rank ",
                  before.rank, " and rank ", part.rank);
    }
    if (part.begin > end) {
      std::string const left = end == 0 ? "" : text("rank ", before.rank, "'s part before them, ");
      return text(elements(end, part.begin), "in no part (", left, "rank ", part.rank, "'s behind)");
    }
    before = part;
    end = part.begin + part.count;
  }
  if (end == whole) return {};
  return text(elements(end, whole), "in no part",
              end == 0 ? "" : text(" (rank ", before.rank, "'s part before them)"));
}

}  // namespace

std::vector<NamedTensor> named_values(std::span<Parameter const> parameters) {
  std::vector<NamedTensor> tensors;
  for (Parameter const& each : parameters) {
    tensors.push_back({each.name, each.value, each.strides});
    require_row_major("named_values: parameter", tensors.back());
  }
  return tensors;
}

std::vector<ShardedTensor> sharded_states(DistributedDataParallel const& ddp, std::string_view state,
                                          std::span<TensorView const> by_slice, std::optional<DType> dtype) {
  auto const slices = ddp.slices();
  require(by_slice.size() == slices.size(), [&] {
    return text("sharded_states: expected \"", state, "\" of ", slices.size(), " slices, found ",
                by_slice.size());
  });
  std::vector<ShardedTensor> states;
  for (Parameter const& each : ddp.parameters()) {
    require_row_major("sharded_states: parameter", {each.name, each.value, each.strides});
    states.push_back(
        {text("state.", each.name, ".", state), each.value.shape, dtype.value_or(each.value.dtype), {}});
  }
  for (Slice const& each : slices) {
    TensorView const& all = by_slice[each.index];
    require(all.count() == each.values.count(), [&] {
      return text("sharded_states: expected \"", state, "\" of slice ", each.index, " to have ",
                  each.values.count(), " elements, found ", describe(all));
    });
    for (BucketSlice const& piece : each.pieces) {
      states[piece.parameter].parts.push_back(
          {piece.parameter_offset, slice(all, piece.bucket_offset, piece.count)});
    }
  }
  return states;
}

void check_checkpoint_tensors(CheckpointTensors const& tensors, Device device) {
  for (auto const* const list : {&tensors.model, &tensors.optimizer, &tensors.rank}) {
    for (NamedTensor const& each : *list) {
      check_place(each.name, each.value, device);
      require_row_major("checkpoint: tensor", each);
    }
  }
  for (ShardedTensor const& each : tensors.sharded_optimizer) {
    for (ShardedTensor::Part const& part : each.parts) {
      check_place(each.name, part.elements, device);
      require(part.elements.dtype == each.dtype, [&] {
        return text("checkpoint: a part of tensor \"", each.name, "\" is ", describe(part.elements),
                    ", expected ", each.dtype);
      });
    }
  }
}

std::string describe_parts(std::span<ShardedTensor const> tensors) {
  auto all = nlohmann::json::array();
  for (ShardedTensor const& each : tensors) {
    auto parts = nlohmann::json::array();
    for (ShardedTensor::Part const& part : each.parts) {
      if (part.elements.count() == 0) continue;
      parts.push_back(part.offset);
      parts.push_back(part.elements.count());
    }
    all.push_back(std::move(parts));
  }
  return all.dump();
}

void check_parts(std::span<ShardedTensor const> tensors, std::span<std::string const> by_rank) {
  std::vector<std::vector<PlacedPart>> parts(tensors.size());
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    try {
      auto const all = nlohmann::json::parse(by_rank[rank]).get<std::vector<std::vector<std::size_t>>>();
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        auto const& numbers = all.at(t);
        for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
          parts[t].push_back({numbers[i], numbers[i + 1], rank});
        }
      }
    } catch (std::exception const& error) {
      throw CommError(ErrorCode::protocol, text("rank ", rank, "'s word about its parts: ", error.what()));
    }
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    std::string const problem = misplaced(tensors[t], parts[t]);
    require(problem.empty(), [&] {
      return text("checkpoint: sharded tensor \"", tensors[t].name, "\", ", tensors[t].dtype,
                  tensors[t].shape, ": ", problem, "; each element must be in one part of one rank");
    });
  }
}

}  // namespace ddp

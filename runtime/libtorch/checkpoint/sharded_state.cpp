#include "libtorch/checkpoint/sharded_state.hpp"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <set>
#include <sstream>

#include "ddp/core/text.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

constexpr char const* kMaster = "master";

}  // namespace

ShardedState::ShardedState(World world, std::string prefix, ShardedOptimizer& optimizer,
                           ParameterNames const& names)
    : world_(std::move(world)),
      prefix_(std::move(prefix)),
      optimizer_(optimizer),
      parameters_(optimizer.parameters()),
      pieces_(optimizer.pieces()) {
  for (auto const& each : parameters_) {
    auto const found = names.find(each.parameter.unsafeGetTensorImpl());
    require(found != names.end(), [&] {
      return text("the optimizer has parameter \"", each.name,
                  "\", which no module of the checkpoint has: "
                  "give all modules whose parameters it trains");
    });
    names_.push_back(found->second);
    if (as_real(each.parameter).is_contiguous()) continue;
    throw Error(ErrorCode::unsupported,
                text("a checkpoint of a ShardedOptimizer: parameter \"", found->second, "\" has strides ",
                     each.parameter.strides(),
                     "; expected one that is row-major, of which ranks know what part "
                     "of the file is theirs"));
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    piece_names_.emplace(pieces_[i].tensor.unsafeGetTensorImpl(), text(i));
  }
  find_fields();
  for (std::size_t g = 0; g < optimizer_.inner().param_groups().size(); ++g) {
    rates_.push_back(at::zeros({}, at::kDouble));
  }
  collect();
}

// Calls on_tensor(piece, field, tensor) and on_number(piece, field, value, set).
template <class OnTensor, class OnNumber>
void ShardedState::visit(OnTensor on_tensor, OnNumber on_number) {
  constexpr std::string_view kState = "state.";
  visit_state(optimizer_.inner(), piece_names_, [&](StatePart const& part) {
    std::string const& name = part.name;
    if (!name.starts_with(kState)) return;  // a learning rate
    std::size_t const dot = name.find('.', kState.size());
    std::size_t piece = 0;
    Classic<std::istringstream>(name.substr(kState.size(), dot - kState.size())) >> piece;
    std::string const field = name.substr(dot + 1);
    part.set ? on_number(piece, field, part.values, part.set) : on_tensor(piece, field, as_real(part.values));
  });
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].is_master) on_tensor(i, kMaster, pieces_[i].tensor);
  }
}

ShardedState::Kind ShardedState::kind_of(std::size_t parameter) const {
  return {parameters_[parameter].group, static_cast<int>(parameters_[parameter].parameter.scalar_type())};
}

// A line for each field of each kind of parameters of which this rank has a piece.
std::string ShardedState::own_fields() {
  make_state(optimizer_.inner(), piece_names_);
  std::set<std::string> lines;
  auto const add = [&](std::size_t piece, std::string const& field, DType dtype, bool is_number) {
    auto const [group, type] = kind_of(pieces_[piece].parameter);
    lines.insert(
        text(group, ' ', type, ' ', field, ' ', static_cast<int>(dtype), ' ', is_number ? 1 : 0, '\n'));
  };
  visit(
      [&](std::size_t piece, std::string const& field, at::Tensor const& values) {
        add(piece, field, view_of(values, world_.device(), field).value.dtype, false);
      },
      [&](std::size_t piece, std::string const& field, at::Tensor const&, auto const&) {
        add(piece, field, DType::i64, true);
      });
  return join(lines, "");
}

// A rank may have no piece of a kind, so ranks tell each other what there is, and what is wrong.
void ShardedState::find_fields() {
  std::exception_ptr error;
  std::string said;
  try {
    said = "+" + own_fields();
  } catch (std::exception const& refused) {
    error = std::current_exception();
    said = text('-', refused.what());
  }
  auto const all = world_.control().all_gather(world_.next_name("state"), said, world_.members(),
                                               Deadline::after(world_.options().timeout));
  if (error) std::rethrow_exception(error);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].starts_with('-')) {
      throw CommError(ErrorCode::mismatch,
                      text("rank ", r, " cannot save its optimizer, so no rank does: ", all[r].substr(1)));
    }
    Classic<std::istringstream> lines(all[r].substr(1));
    Kind kind;
    Field field;
    int dtype = 0;
    int is_number = 0;
    while (lines >> kind.first >> kind.second >> field.name >> dtype >> is_number) {
      field.dtype = static_cast<DType>(dtype);
      field.is_number = is_number != 0;
      auto& fields = fields_[kind];
      if (std::ranges::find(fields, field) == fields.end()) fields.push_back(field);
    }
  }
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    for (Field const& field : fields_[kind_of(p)]) {
      if (field.is_number) numbers_[{p, field.name}] = at::zeros({}, at::kLong);
    }
  }
}

void ShardedState::add_to(CheckpointTensors& tensors) const {
  auto const number = [&](std::string const& name, at::Tensor const& memory) {
    tensors.optimizer.push_back({inside(prefix_, name), view_of(memory, Device{}, name).value});
  };
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    auto const fields = fields_.find(kind_of(p));
    if (fields == fields_.end()) continue;
    for (Field const& field : fields->second) {
      std::string const name = text("state.", names_[p], '.', field.name);
      if (field.is_number) {
        number(name, numbers_.at({p, field.name}));
        continue;
      }
      Shape const shape = view_of(parameters_[p].parameter, world_.device(), name).value.shape;
      ShardedTensor whole{inside(prefix_, name), shape, field.dtype};
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        auto const found = memory_.find({i, field.name});
        if (pieces_[i].parameter != p || found == memory_.end()) continue;
        whole.parts.push_back({pieces_[i].offset, view_of(found->second, world_.device(), name).value});
      }
      tensors.sharded_optimizer.push_back(std::move(whole));
    }
  }
  for (std::size_t g = 0; g < rates_.size(); ++g) number(text("param_groups.", g, ".lr"), rates_[g]);
}

// Every rank needs the numbers of all parameters, and has those of its pieces.
void ShardedState::collect() {
  at::NoGradGuard const no_graph;
  std::map<Key, std::int64_t> known;
  visit(
      [&](std::size_t piece, std::string const& field, at::Tensor const& now) {
        auto const [found, is_new] = memory_.emplace(Key{piece, field}, now);
        if (!is_new && now.const_data_ptr() != found->second.const_data_ptr()) found->second.copy_(now);
      },
      [&](std::size_t piece, std::string const& field, at::Tensor const& value, auto const&) {
        known[{pieces_[piece].parameter, field}] = value.item<std::int64_t>();
      });
  for (std::size_t g = 0; g < rates_.size(); ++g) {
    rates_[g].fill_(optimizer_.inner().param_groups()[g].options().get_lr());
  }
  if (numbers_.empty()) return;
  std::string said;
  for (auto const& [key, value] : known) said += text(key.first, ' ', key.second, ' ', value, '\n');
  auto const all = world_.control().all_gather(world_.next_name("numbers"), said, world_.members(),
                                               Deadline::after(world_.options().timeout));
  for (std::string const& of_rank : all) {
    Classic<std::istringstream> lines(of_rank);
    Key key;
    std::int64_t value = 0;
    while (lines >> key.first >> key.second >> value) numbers_.at(key).fill_(value);
  }
}

void ShardedState::put_back() {
  at::NoGradGuard const no_graph;
  visit(
      [&](std::size_t piece, std::string const& field, at::Tensor const& now) {
        at::Tensor const& saved = memory_.at({piece, field});
        if (now.const_data_ptr() != saved.const_data_ptr()) now.copy_(saved);
      },
      [&](std::size_t piece, std::string const& field, at::Tensor const&, auto const& set) {
        set(numbers_.at({pieces_[piece].parameter, field}));
      });
  for (std::size_t g = 0; g < rates_.size(); ++g) {
    optimizer_.inner().param_groups()[g].options().set_lr(rates_[g].item<double>());
  }
  optimizer_.masters_are_new();
}

}  // namespace ddp::libtorch

// What a ShardedOptimizer remembers, for a checkpoint that has it whole (R25).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/libtorch/sharded_optimizer.hpp"
#include "ddp/parallel/world.hpp"
#include "libtorch/checkpoint/optimizer_state.hpp"

namespace ddp::libtorch {

/// The state of pieces as parts of whole tensors, under the names that it has for a plain optimizer; numbers
/// such as step counts, which every rank gets; and the f32 masters of 16-bit parameters.
class ShardedState {
 public:
  /// Collective. `prefix`: of all names. `names`: of the module's parameters. Throws Error(unsupported),
  /// Error(invalid_argument) as Checkpoint says. `optimizer` must outlive it.
  ShardedState(World world, std::string prefix, ShardedOptimizer& optimizer, ParameterNames const& names);

  void add_to(CheckpointTensors& tensors) const;
  /// Before a save. Collective.
  void collect();
  /// After a restore.
  void put_back();

 private:
  struct Field {
    std::string name;
    DType dtype = DType::f32;
    bool is_number = false;
    friend bool operator==(Field const&, Field const&) = default;
  };
  using Key = std::pair<std::size_t, std::string>;  // piece, field
  using Kind = std::pair<std::size_t, int>;         // of parameters: group, PyTorch's type

  template <class OnTensor, class OnNumber>
  void visit(OnTensor on_tensor, OnNumber on_number);
  [[nodiscard]] std::string own_fields();
  void find_fields();
  [[nodiscard]] Kind kind_of(std::size_t parameter) const;

  World world_;
  std::string prefix_;
  ShardedOptimizer& optimizer_;
  std::vector<ShardedOptimizer::Trained> parameters_;
  std::vector<std::string> names_;  // of these
  std::vector<ShardedOptimizer::Piece> pieces_;
  ParameterNames piece_names_;  // their numbers
  std::map<Kind, std::vector<Field>> fields_;
  std::map<Key, at::Tensor> memory_;   // that the runtime reads and writes
  std::map<Key, at::Tensor> numbers_;  // by parameter and field; i64
  std::vector<at::Tensor> rates_;      // by group; f64
};

}  // namespace ddp::libtorch

// Which operation or node of PyTorch an exception came from.
#pragma once

#include <cstdint>
#include <string>

namespace ddp::libtorch {

/// Follows the operations of the thread that makes it, and the backward passes that this thread begins, as
/// long as it lives. If several live at once, the first one does.
class OperationTrail {
 public:
  OperationTrail();
  ~OperationTrail();
  OperationTrail(OperationTrail const&) = delete;
  OperationTrail& operator=(OperationTrail const&) = delete;

  /// Where the exception that was caught last came from: "in aten::_local_scalar_dense in aten::item: "; if
  /// it was between two nodes of a backward pass, "in autograd::engine::evaluate_function: " and one of them;
  /// empty if it was in no operation.
  [[nodiscard]] std::string where() const;

 private:
  std::uint64_t handle_ = 0;  // PyTorch's, of its observer; 0: none
};

}  // namespace ddp::libtorch

// Nodes of PyTorch's autograd graph, which are held by std::shared_ptr in some versions (2.11) and by
// c10::intrusive_ptr in others (2.15).
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>

namespace ddp::libtorch {

using NodePointer = decltype(torch::autograd::Edge::function);

/// A new node, for gradients of tensors that are made without PyTorch's operations.
template <class Made>
[[nodiscard]] auto make_node() {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<Made>(new Made, [](Made* node) { deleteNode(node); });  // found by its argument
  } else {
    return c10::make_intrusive<Made>();
  }
}

/// The tensor gets another accumulator of gradients in the next forward pass.
inline void drop_accumulator(at::Tensor const& tensor) {
  auto const set = []<class Weak>(void (*call)(at::Tensor const&, Weak), at::Tensor const& of) {
    call(of, Weak(NodePointer()));
  };
  set(torch::autograd::impl::set_grad_accumulator, tensor);
}

}  // namespace ddp::libtorch

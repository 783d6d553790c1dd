// What a recorded step consists of.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "device/cuda/check.hpp"

namespace ddp::cuda {

/// The nodes of one type. `doing` begins the message of an error.
inline std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph, cudaGraphNodeType wanted,
                                             std::string_view doing) {
  std::size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count), doing);
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count), doing);
  std::erase_if(nodes, [&](auto* const node) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), doing);
    return type != wanted;
  });
  return nodes;
}

}  // namespace ddp::cuda

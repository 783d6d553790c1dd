#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/recorded_graph.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/graph_nodes.hpp"

namespace ddp::cuda {
namespace {

constexpr std::size_t kSmall = 64 << 10;  // bytes: of more, a memset may be the faster one
constexpr unsigned kThreads = 256;

template <class T>
__global__ void fill(T* to, T value, std::size_t count) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    to[i] = value;
}

constexpr std::string_view kReplacing = "replacing a memset of a recorded step by a kernel";

void check_graph(cudaError_t result) { check(result, kReplacing); }

// Since CUDA 13 these functions also return the kinds of edges; edges of a memset are plain.
struct Edges {
  static cudaError_t before(cudaGraphNode_t node, cudaGraphNode_t* list, std::size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependencies(node, list, nullptr, count);
#else
    return cudaGraphNodeGetDependencies(node, list, count);
#endif
  }
  static cudaError_t behind(cudaGraphNode_t node, cudaGraphNode_t* list, std::size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphNodeGetDependentNodes(node, list, nullptr, count);
#else
    return cudaGraphNodeGetDependentNodes(node, list, count);
#endif
  }
  static cudaError_t add(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
#if CUDART_VERSION >= 13000
    return cudaGraphAddDependencies(graph, &from, &to, nullptr, 1);
#else
    return cudaGraphAddDependencies(graph, &from, &to, 1);
#endif
  }
};

template <class Get>
std::vector<cudaGraphNode_t> neighbours(cudaGraphNode_t node, Get const& get) {
  std::size_t count = 0;
  check_graph(get(node, nullptr, &count));
  std::vector<cudaGraphNode_t> list(count);
  if (count > 0) check_graph(get(node, list.data(), &count));
  return list;
}

template <class T>
cudaGraphNode_t add_fill(cudaGraph_t graph, std::vector<cudaGraphNode_t> const& before,
                         cudaMemsetParams const& memset) {
  auto* to = static_cast<T*>(memset.dst);
  auto value = static_cast<T>(memset.value);
  std::size_t count = memset.width;
  std::array<void*, 3> arguments{&to, &value, &count};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(&fill<T>);
  kernel.gridDim = dim3(static_cast<unsigned>(std::min<std::size_t>((count + kThreads - 1) / kThreads, 64)));
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments.data();
  cudaGraphNode_t node = nullptr;
  check_graph(cudaGraphAddKernelNode(&node, graph, before.data(), before.size(), &kernel));
  return node;
}

void replace_if_small(cudaGraph_t graph, cudaGraphNode_t node) {
  cudaMemsetParams memset{};
  check_graph(cudaGraphMemsetNodeGetParams(node, &memset));
  std::size_t const bytes = memset.width * memset.elementSize;
  if (memset.height > 1 || bytes == 0 || bytes > kSmall) return;
  auto const before = neighbours(node, Edges::before);
  auto const behind = neighbours(node, Edges::behind);
  cudaGraphNode_t const kernel = memset.elementSize == 1   ? add_fill<std::uint8_t>(graph, before, memset)
                                 : memset.elementSize == 2 ? add_fill<std::uint16_t>(graph, before, memset)
                                                           : add_fill<std::uint32_t>(graph, before, memset);
  for (auto* const next : behind) check_graph(Edges::add(graph, kernel, next));
  check_graph(cudaGraphDestroyNode(node));
}

}  // namespace
}  // namespace ddp::cuda

namespace ddp {

// CUDA removes no node from a graph that allocates or frees memory, as cuBLAS does where it was given no
// workspace.
void RecordedGraph::replace_memsets(CUgraph_st* graph, Device device) {
  DeviceGuard const guard(device);
  for (auto const type : {cudaGraphNodeTypeMemAlloc, cudaGraphNodeTypeMemFree}) {
    if (!cuda::nodes_of(graph, type, cuda::kReplacing).empty()) return;
  }
  for (auto* const node : cuda::nodes_of(graph, cudaGraphNodeTypeMemset, cuda::kReplacing)) {
    cuda::replace_if_small(graph, node);
  }
}

}  // namespace ddp

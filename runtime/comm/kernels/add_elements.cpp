#include "comm/kernels/add_elements.hpp"

#include <algorithm>

#include "comm/kernels/cuda_kernels.hpp"
#include "comm/kernels/reduce_kernels.hpp"

namespace ddp {
namespace {

void add_on_host(void* to, Addends const& from, std::size_t count, DType dtype) {
  std::array<ReduceSource, Addends::kMost + 1> sources;
  sources[0] = {to};
  for (std::size_t i = 0; i < from.size; ++i) sources[i + 1] = {from.data[i]};
  reduce_elements({&to, 1}, std::span(sources).first(from.size + 1), count, dtype, ReduceOp::Kind::sum,
                  false);
}

}  // namespace

void add_elements(void* to, std::span<void const* const> from, std::size_t count, DType dtype,
                  Stream& stream) {
  while (!from.empty() && count != 0) {
    Addends some;
    some.size = std::min(from.size(), Addends::kMost);
    std::copy_n(from.begin(), some.size, some.data.begin());
    from = from.subspan(some.size);
    if (stream.device().kind == DeviceKind::cuda) {
      cuda::add_elements(to, some, count, dtype, stream);
    } else {
      host_stream(stream).enqueue([to, some, count, dtype] { add_on_host(to, some, count, dtype); });
    }
  }
}

}  // namespace ddp

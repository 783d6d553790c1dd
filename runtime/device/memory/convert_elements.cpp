#include <type_traits>

#include "ddp/core/half.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"

namespace ddp {
namespace {

template <class T>
constexpr bool is_16_bit = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

template <class To, class From>
void convert(void* to, void const* from, std::size_t count) {
  auto* const out = static_cast<To*>(to);
  auto const* const in = static_cast<From const*>(from);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (is_16_bit<To> || is_16_bit<From>) {
      out[i] = static_cast<To>(static_cast<float>(in[i]));
    } else {
      out[i] = static_cast<To>(in[i]);
    }
  }
}

// Does nothing unless both are floating point types.
void convert(DType to, void* out, DType from, void const* in, std::size_t count) {
  dispatch(to, [&]<class To>(To) {
    dispatch(from, [&]<class From>(From) {
      if constexpr (is_floating(dtype_of<To>) && is_floating(dtype_of<From>))
        convert<To, From>(out, in, count);
    });
  });
}

}  // namespace

void convert_elements(std::span<Copy const> copies, Stream& stream) {
  if (copies.empty()) return;
  DType const to = copies[0].to.dtype;
  DType const from = copies[0].from.dtype;
  Device const device = stream.device();
  auto const is_here = [&](TensorView const& view) {
    return device.kind == DeviceKind::cpu ? view.device.kind == DeviceKind::cpu : view.device == device;
  };
  for (Copy const& copy : copies) {
    require(copy.to.count() == copy.from.count() && copy.to.dtype == to && copy.from.dtype == from &&
                to != from && is_floating(to) && is_floating(from) && is_here(copy.to) && is_here(copy.from),
            [&] {
              return text("convert_elements: cannot convert ", describe(copy.from), " to ", describe(copy.to),
                          " on a stream of ", device,
                          "; expected as many elements of two floating point types, ", "for all copies ",
                          from, " to ", to);
            });
  }
  if (device.kind == DeviceKind::cuda) {
    cuda::convert(copies, stream);
    return;
  }
  HostStream& host = host_stream(stream);
  for (Copy const& copy : copies) {
    host.enqueue([to, from, out = copy.to.data, in = copy.from.data, count = copy.to.count()] {
      convert(to, out, from, in, count);
    });
  }
}

}  // namespace ddp

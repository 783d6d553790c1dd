#include "comm/plain_memory.hpp"

#include "comm/shared_memory.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {

Tensor plain_memory(Bytes bytes, Device device) {
  bool const on_cpu = device.kind == DeviceKind::cpu;
  // The kernel would promise more than there is, and kill whoever uses it.
  Bytes const most = on_cpu ? SharedMemory::available() : memory_info(device).total;
  if (bytes > most) {
    throw Error(ErrorCode::out_of_memory, text("allocate: ", to_string(bytes), " asked for, ", device,
                                               " has ", to_string(most), on_cpu ? " available" : " in all"));
  }
  return zeros(Shape{bytes.value}, DType::u8, device);
}

}  // namespace ddp

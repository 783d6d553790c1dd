// A build without CUDA, or with a toolkit before 12.4, which knows no green contexts.
#include "ddp/core/text.hpp"
#include "ddp/device/sm_partition.hpp"

namespace ddp {

class SmPartition::Parts {};

SmPartition::SmPartition(Device device, int communication) : device_(device) {
  require(device.kind == DeviceKind::cuda,
          [&] { return text(communication, " SMs for communication: ", device, " is no GPU and has none"); });
  throw Error(ErrorCode::unsupported,
              text("setting SMs of ", device,
                   " aside for communication needs a build of ddp with CUDA 12.4 or later"));
}

// Never reached: there are no objects.
std::unique_ptr<Stream> SmPartition::make_comm_stream() const { return ddp::make_comm_stream(device_); }
std::unique_ptr<Stream> SmPartition::make_compute_stream() const { return ddp::make_compute_stream(device_); }

}  // namespace ddp

// A GPU's multiprocessors divided between computation and communication.
#pragma once

#include <memory>

#include "ddp/core/device.hpp"
#include "ddp/core/export.hpp"
#include "ddp/device/stream.hpp"

namespace DDP_EXPORT ddp {

/// Two disjoint sets of a GPU's streaming multiprocessors (SMs), and streams whose kernels run on one set
/// only (CUDA's green contexts).
///
/// Without it a library's matrix product occupies every SM while it runs. A collective then waits for the end
/// of the product, and the next product for the SMs of the collective: the two take turns instead of
/// overlapping. Kernels that plan their work by the number of SMs, as cuBLAS's do, must be told compute_sms()
/// by cublasSetSmCountTarget(): cuBLAS 13.0 does not ask the stream.
class SmPartition {
 public:
  /// Sets at least `communication` SMs of `device` aside; the driver rounds up to a multiple of what it can
  /// separate, 8 on compute capability 9.0. Opens the device's context. Throws Error(invalid_argument) if
  /// that leaves none to compute on or if `device` is no GPU, Error(unsupported) before CUDA 12.4.
  SmPartition(Device device, int communication);

  [[nodiscard]] Device device() const noexcept { return device_; }  ///< The GPU that is cut.
  /// SMs of the part for communication.
  [[nodiscard]] int communication_sms() const noexcept { return communication_sms_; }
  [[nodiscard]] int compute_sms() const noexcept { return compute_sms_; }  ///< SMs of the other part.

  /// As make_comm_stream(device()), on the SMs set aside. While one such stream lives, further ones are on
  /// the other SMs, where the program's kernels may come first. If they shared the SMs set aside, two
  /// collectives that ranks launch in different order would each occupy SMs that the other needs. Each stream
  /// needs room for communication_sms(); throws Error(invalid_state) if there is none. Collectives on a
  /// stream of make_compute_stream() have no own SMs: ranks must launch all in one order.
  [[nodiscard]] std::unique_ptr<Stream> make_comm_stream() const;
  /// A stream on the other SMs. It does not keep order with CUDA's default stream, which has all SMs.
  [[nodiscard]] std::unique_ptr<Stream> make_compute_stream() const;

 private:
  class DDP_HIDDEN Parts;
  Device device_;
  int communication_sms_ = 0;
  int compute_sms_ = 0;
  std::shared_ptr<Parts> parts_;  // streams keep it too
};

}  // namespace ddp

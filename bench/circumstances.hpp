// What every report says of its circumstances.
#pragma once

#include <string>

#include "ddp/core/device.hpp"

namespace ddp::bench {

struct Circumstances {
  std::string backend;  ///< Communicator::backend(), or "null"
  int ranks = 1;
  std::string hardware;  ///< "AMD EPYC, 2 CPUs at 2596 MHz"
  std::string date;      ///< UTC, "2026-11-20T14:30:00Z"
  /// "NVIDIA H200, driver 580.82.07, CUDA 13.0, NCCL 2.28.9"; empty for CPU ranks.
  std::string gpu{};
  /// Of that GPU, right after the last measurement: "1980 MHz, 3201 MHz, 512.30 W"; empty if not known.
  std::string gpu_clocks{};
};

/// Of this process's host, now, for memory of `device`.
[[nodiscard]] Circumstances circumstances(std::string backend, int ranks, Device device);

/// Clocks of SM and memory, and the power drawn, as nvidia-smi tells; "" where it does not, and for a CPU.
[[nodiscard]] std::string gpu_clocks(Device device);

}  // namespace ddp::bench

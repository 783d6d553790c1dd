// What --check and --list-devices print.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "launcher/check/library_versions.hpp"
#include "launcher/check/machine_check.hpp"
#include "launcher/options/options.hpp"
#include "launcher/plan/machine.hpp"

namespace ddp::launcher {

/// One line for each check with its details below, and a last line with the sums.
[[nodiscard]] std::string check_text(std::span<Check const> checks);

/// The same as JSON, with all GPUs of the machine. docs/launcher.md names the fields.
[[nodiscard]] std::string check_json(std::span<Check const> checks, Machine const& machine);

/// The versions that are printed beside devices.
struct DeviceVersions {
  std::string cuda_runtime;  ///< that this build was made with, "13.0.88"; empty without CUDA
  LibraryVersion nccl = {};
  LibraryVersion cudnn = {};
  LibraryVersion mpi = {};
};

/// Asks for all versions at once and calls `meanwhile` before it waits. This process must have one thread.
/// Throws ExitError(75) where no process can be started.
[[nodiscard]] DeviceVersions ask_versions(std::string const& built_cuda,
                                          std::function<void()> const& meanwhile);

/// The device map of the ranks that these options start (D1): a line for each logical device and for each GPU
/// that they do not see; why GPUs may be missing; versions and the number of CPU cores. With MIG instances
/// the numbers are the ranks'. Throws ExitError(64) and ExitError(69) as named_gpus() does.
[[nodiscard]] std::string devices_text(Options const& options, Machine const& machine,
                                       DeviceVersions const& versions);

/// The same as JSON, with the driver's GPUs and how they reach each other. docs/launcher.md names the fields.
[[nodiscard]] std::string devices_json(Options const& options, Machine const& machine,
                                       DeviceVersions const& versions);

}  // namespace ddp::launcher

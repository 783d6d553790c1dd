// Which GPUs: CUDA_VISIBLE_DEVICES as CUDA reads it, and --gpus, judged strictly. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::launcher {

/// A GPU as the driver lists it. Its place in the list is its physical index.
struct Gpu {
  std::string uuid;              ///< "GPU-8c0f…"
  std::string name;              ///< "NVIDIA H200"
  std::vector<std::string> mig;  ///< ids of its MIG instances: "MIG-41b3…"
};

/// What CUDA would enumerate for this value of CUDA_VISIBLE_DEVICES, as UUIDs in logical order.
/// nullopt (unset) is all; an entry that is no device ends the list there; a repeated device leaves none.
/// The rules, down to what happens to "0x1" and " 1", are those that CUDA 13's driver showed when asked.
[[nodiscard]] std::vector<std::string> read_cuda_visible_devices(std::optional<std::string> const& value,
                                                                 std::span<Gpu const> gpus);

/// The GPUs that --gpus names, as UUIDs in the order given: "all", indices into `visible`, UUIDs, MIG ids, or
/// unique beginnings of those. `inherited` is CUDA_VISIBLE_DEVICES, for messages.
/// Throws ExitError(64) for what is no list (bad tokens, duplicates, a mixture with "all") and ExitError(69)
/// for a device that is not visible, naming the token and what is visible. Never gives a part of the list.
[[nodiscard]] std::vector<std::string> select_gpus(std::string_view list,
                                                   std::span<std::string const> visible,
                                                   std::optional<std::string> const& inherited);

}  // namespace ddp::launcher

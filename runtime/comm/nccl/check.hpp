// NCCL's results as exceptions.
#pragma once

#include <nccl.h>

#include <chrono>
#include <source_location>
#include <string>
#include <string_view>

#include "ddp/core/error.hpp"

namespace ddp::nccl {

/// How long an error of NCCL is held back, since the control plane may tell by then which rank caused it; and
/// how long operations may still take after a rank that took part in them has left in order.
inline constexpr std::chrono::milliseconds kLostRankGrace = std::chrono::seconds(1);

/// Of the library that is loaded, as NCCL_VERSION_CODE.
[[nodiscard]] int version();
/// The code that fits `result`: peer_lost for a remote error, device for CUDA's, io otherwise.
[[nodiscard]] ErrorCode code_of(ncclResult_t result) noexcept;
/// What was being done, NCCL's text for it and its last words, and what to do.
[[nodiscard]] std::string describe(ncclResult_t result, std::string_view doing);
/// Throws CommError for anything but ncclSuccess and ncclInProgress.
void check(ncclResult_t result, std::string_view doing,
           std::source_location where = std::source_location::current());

}  // namespace ddp::nccl

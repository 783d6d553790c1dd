// CUDA's results as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

#include "core/system/own_process.hpp"
#include "ddp/core/error.hpp"

namespace ddp::cuda {

/// Throws for anything but cudaSuccess, with what was being done and CUDA's name and text for it:
/// Error(out_of_memory), Error(not_found) where no such device is, Error(unsupported), Error(device)
/// otherwise.
void check(cudaError_t result, std::string_view doing,
           std::source_location where = std::source_location::current());

/// Whether the work that a query asked about is done. "Not ready" is no error, and is cleared, so that
/// cudaGetLastError() does not return it later. Throws as check() for anything else.
[[nodiscard]] bool is_done(cudaError_t result, std::string_view doing,
                           std::source_location where = std::source_location::current());

/// The process that first used CUDA, known since then. A forked child of it cannot use CUDA.
[[nodiscard]] OwnProcess const& maker_of_contexts();

}  // namespace ddp::cuda

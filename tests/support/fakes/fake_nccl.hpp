// NCCL's functions that make and end communicators, for ranks that are threads: without GPUs, and with the
// rules of NCCL on who waits for whom and who shares what. A program that links this has no other NCCL.
#pragma once

#include <nccl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace ddp::testing::fake_nccl {

/// How many communicators there are: made, and neither aborted nor destroyed.
[[nodiscard]] int open_communicators();
/// How many times ranks were connected by an id.
[[nodiscard]] int connections();

/// From now on it takes so long to connect ranks that are all there.
void connect_in(std::chrono::milliseconds time);

/// The variable as NCCL found it when an id was made last; "unset".
[[nodiscard]] std::string interface_of_last_id();
/// ncclConfig_t::maxCTAs.
[[nodiscard]] int most_ctas(ncclComm_t communicator);

/// What NCCL says of its version to the calling thread.
void set_version(int version);

/// What ncclCommGetAsyncError() says of it from now on.
void fail(ncclComm_t communicator, ncclResult_t result);

/// Whether what runs on `communicator` has been told to give up.
[[nodiscard]] bool is_told_to_abort(ncclComm_t communicator);
[[nodiscard]] int rank_of(ncclComm_t communicator);
[[nodiscard]] int size_of(ncclComm_t communicator);
[[nodiscard]] bool is_blocking(ncclComm_t communicator);

}  // namespace ddp::testing::fake_nccl

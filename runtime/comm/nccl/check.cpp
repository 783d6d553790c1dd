#include "comm/nccl/check.hpp"

#include "ddp/core/text.hpp"

namespace ddp::nccl {

int version() {
  int code = 0;
  check(ncclGetVersion(&code), "asking for NCCL's version");
  return code;
}

ErrorCode code_of(ncclResult_t result) noexcept {
  if (result == ncclRemoteError) return ErrorCode::peer_lost;
  return result == ncclUnhandledCudaError ? ErrorCode::device : ErrorCode::io;
}

std::string describe(ncclResult_t result, std::string_view doing) {
  std::string_view const last_words = ncclGetLastError(nullptr);
  return text(doing, ": NCCL: ", ncclGetErrorString(result), last_words.empty() ? "" : ": ", last_words,
              "; with NCCL_DEBUG=INFO in the environment it says more");
}

void check(ncclResult_t result, std::string_view doing, std::source_location where) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw CommError(code_of(result), describe(result, doing), where);
}

}  // namespace ddp::nccl

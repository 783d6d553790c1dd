// A build without OpenSSL has no checkpoints.
#include "checkpoint/sha256.hpp"
#include "ddp/core/error.hpp"

namespace ddp {

Sha256::Sha256() {
  throw Error(ErrorCode::unsupported,
              "checkpoints need SHA-256, and this build has no OpenSSL: install libssl-dev, configure and "
              "build again");
}

void Sha256::add(std::span<std::byte const> /*bytes*/) {}
std::string Sha256::finish() { return {}; }

}  // namespace ddp

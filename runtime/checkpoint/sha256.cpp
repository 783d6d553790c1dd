#include "checkpoint/sha256.hpp"

#include <openssl/evp.h>

#include <array>

#include "ddp/core/error.hpp"

namespace ddp {
namespace {

void check(int result) {
  if (result != 1) throw Error(ErrorCode::unsupported, "OpenSSL cannot compute SHA-256 here");
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
}

void Sha256::add(std::span<std::byte const> bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  constexpr char const* kDigits = "0123456789abcdef";
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15U];
  }
  return hex;
}

}  // namespace ddp

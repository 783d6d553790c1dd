// SHA-256 (FIPS 180-4), by OpenSSL.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // what EVP_MD_CTX is

namespace ddp {

class Sha256 {
 public:
  /// Throws Error(unsupported) in a build without OpenSSL.
  Sha256();
  void add(std::span<std::byte const> bytes);
  /// 64 hexadecimal digits. Called once, last.
  [[nodiscard]] std::string finish();

  [[nodiscard]] static std::string of(std::string_view bytes) {
    Sha256 hash;
    hash.add(std::as_bytes(std::span(bytes)));
    return hash.finish();
  }

 private:
  std::shared_ptr<evp_md_ctx_st> context_;
};

}  // namespace ddp

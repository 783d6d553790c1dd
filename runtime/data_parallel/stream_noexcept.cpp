#include "data_parallel/stream_noexcept.hpp"

#include <exception>

#include "ddp/core/log.hpp"

namespace ddp {
namespace {

template <class Attempt>
bool attempt(Attempt const& work) noexcept {
  try {
    work();
    return true;
  } catch (std::exception const& error) {
    log(LogLevel::debug, error.what());
    return false;
  }
}

}  // namespace

void wait_if_possible(Stream& waiting, Stream& other) noexcept {
  attempt([&] { waiting.wait(other); });
}
bool synchronize_if_possible(Stream& stream) noexcept {
  return attempt([&] { stream.synchronize(); });
}

}  // namespace ddp

#include "device/info/api_call.hpp"

namespace ddp {
namespace {

thread_local std::string_view outermost_call;

}  // namespace

ApiCall::ApiCall(std::string_view name) noexcept : outermost_(outermost_call.empty()) {
  if (outermost_) outermost_call = name;
}

ApiCall::~ApiCall() {
  if (outermost_) outermost_call = {};
}

std::string_view ApiCall::current() noexcept { return outermost_call; }

}  // namespace ddp

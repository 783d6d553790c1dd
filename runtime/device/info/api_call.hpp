// Which public function this thread is in, for messages about calls that came too late.
#pragma once

#include <string_view>

namespace ddp {

/// Names the outermost public function that the calling thread is in. Lives on the stack.
class [[nodiscard]] ApiCall {
 public:
  /// `name` outlives the object: a literal.
  explicit ApiCall(std::string_view name) noexcept : outermost_(outermost_call.empty()) {
    if (outermost_) outermost_call = name;
  }
  ~ApiCall() {
    if (outermost_) outermost_call = {};
  }
  ApiCall(ApiCall const&) = delete;
  ApiCall& operator=(ApiCall const&) = delete;

  /// Of the calling thread; empty outside of any.
  [[nodiscard]] static std::string_view current() noexcept { return outermost_call; }

 private:
  static constinit inline thread_local std::string_view outermost_call{};

  bool outermost_;
};

}  // namespace ddp

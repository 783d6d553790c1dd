// Whether a program is built for AddressSanitizer or ThreadSanitizer, which need memory and time.
#pragma once

namespace ddp::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ddp::testing

// Micro-steps, whose gradients only add up.
#pragma once

#include "ddp/core/export.hpp"

namespace ddp {
class Reducer;  // of DistributedDataParallel
}

namespace DDP_EXPORT ddp {

/// While it lives, its DistributedDataParallel sends nothing. Must not outlive it.
// The functions that return one are [[nodiscard]], not the class: nvcc would warn of std::optional::emplace.
class NoSyncGuard {
 public:
  NoSyncGuard() noexcept = default;                      ///< Guards nothing.
  NoSyncGuard(NoSyncGuard&& other) noexcept;             ///< The moved-from guard guards nothing.
  NoSyncGuard& operator=(NoSyncGuard&& other) noexcept;  ///< Ends what it guarded, then as above.
  ~NoSyncGuard();

 private:
  friend class ddp::Reducer;
  explicit NoSyncGuard(Reducer& reducer);
  Reducer* reducer_ = nullptr;
};

}  // namespace ddp

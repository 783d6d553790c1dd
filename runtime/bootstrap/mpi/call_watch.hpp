// Calls into libraries that may never return and cannot be interrupted.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "ddp/core/deadline.hpp"

namespace ddp {

/// Stands beside such a call: if it still lives at the deadline, it calls `overdue` once, in a thread of its
/// own. What that does is up to the caller; the call itself goes on.
class CallWatch {
 public:
  CallWatch(Deadline deadline, std::function<void()> overdue);
  ~CallWatch();
  CallWatch(CallWatch const&) = delete;
  CallWatch& operator=(CallWatch const&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool returned_ = false;
  std::thread thread_;
};

}  // namespace ddp

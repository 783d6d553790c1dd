#include "bootstrap/mpi/call_watch.hpp"

#include <utility>

#include "bootstrap/quiet_thread.hpp"
#include "core/patience.hpp"

namespace ddp {

CallWatch::CallWatch(Deadline deadline, std::function<void()> overdue)
    : thread_(start_thread_without_signals([this, deadline, overdue = std::move(overdue)] {
        std::unique_lock lock(mutex_);
        if (!Patience(deadline).wait(lock, ended_, [this] { return returned_; })) overdue();
      })) {}

CallWatch::~CallWatch() {
  {
    std::lock_guard const lock(mutex_);
    returned_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

}  // namespace ddp

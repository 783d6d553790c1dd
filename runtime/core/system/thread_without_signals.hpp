// Threads of this library.
#pragma once

#include <pthread.h>

#include <csignal>
#include <future>
#include <thread>
#include <utility>

namespace ddp {

/// While it lives, no signal from outside is delivered to the calling thread, nor ever to threads that it
/// starts meanwhile. A thread's own faults still reach the program's handlers.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t signals;
    sigfillset(&signals);
    for (int const fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&signals, fault);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(SignalsBlocked const&) = delete;
  SignalsBlocked& operator=(SignalsBlocked const&) = delete;

 private:
  sigset_t before_{};
};

/// A thread in which signals are blocked: the program's go to the program's threads.
template <class Function>
[[nodiscard]] std::thread start_thread_without_signals(Function function) {
  SignalsBlocked const during;
  return std::thread(std::move(function));
}

/// Calls `function` in such a thread; the future's destructor waits for it.
template <class Function>
[[nodiscard]] auto call_without_signals(Function function) {
  SignalsBlocked const during;
  return std::async(std::launch::async, std::move(function));
}

}  // namespace ddp

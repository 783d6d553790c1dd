// Threads of this library.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace ddp {

/// A thread in which every signal is blocked: the program's signals go to the program's threads.
template <class Function>
[[nodiscard]] std::thread start_thread_without_signals(Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::move(function));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace ddp

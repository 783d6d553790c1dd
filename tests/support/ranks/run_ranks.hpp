// Ranks as threads of the test.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ddp::testing {

/// Calls body(rank) in `size` threads and waits for all. Rethrows the first exception in rank order.
template <class Body>
void run_ranks(int size, Body body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto const& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace ddp::testing

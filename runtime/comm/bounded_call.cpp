#include "comm/bounded_call.hpp"

#include <future>
#include <thread>
#include <utility>

namespace ddp {

bool call_within(std::chrono::milliseconds longest, std::function<void()> call) {
  std::packaged_task<void()> task(std::move(call));
  std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  if (done.wait_for(longest) != std::future_status::ready) return false;
  done.get();
  return true;
}

}  // namespace ddp

#include "core/service_thread.hpp"

#include <algorithm>

#include "core/thread_without_signals.hpp"

namespace ddp {

void ServiceThread::add(Client& client) {
  std::lock_guard const life(life_);
  if (!thread_.joinable()) {
    stop_ = false;
    thread_ = start_thread_without_signals([this] { run(); });
  }
  {
    std::lock_guard const lock(mutex_);
    clients_.push_back(&client);
    wake_ = true;
  }
  woken_.notify_one();
}

// A client that leaves waits for its own serve() only. So the last ones do not end the thread while another
// is being served: that one leaves too, and ends it.
void ServiceThread::remove(Client& client) noexcept {
  {
    std::unique_lock lock(mutex_);
    std::erase(clients_, &client);
    served_.wait(lock, [&] { return serving_ != &client; });
  }
  std::lock_guard const life(life_);
  {
    std::lock_guard const lock(mutex_);
    if (!clients_.empty() || serving_ != nullptr || !thread_.joinable()) return;
    stop_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void ServiceThread::wake() noexcept {
  {
    std::lock_guard const lock(mutex_);
    wake_ = true;
  }
  woken_.notify_one();
}

// Clients may come and go meanwhile.
std::optional<std::chrono::milliseconds> ServiceThread::serve_all(std::unique_lock<std::mutex>& lock) {
  std::optional<std::chrono::milliseconds> next;
  auto const clients = clients_;
  for (Client* const client : clients) {
    if (std::ranges::find(clients_, client) == clients_.end()) continue;
    serving_ = client;
    lock.unlock();
    auto const again = client->serve();
    lock.lock();
    serving_ = nullptr;
    served_.notify_all();
    if (again && (!next || *again < *next)) next = again;
  }
  return next;
}

void ServiceThread::run() noexcept {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_ = false;
    auto const next = serve_all(lock);
    auto const called = [this] { return wake_ || stop_; };
    if (next) {
      woken_.wait_for(lock, *next, called);
    } else {
      woken_.wait(lock, called);
    }
  }
}

}  // namespace ddp

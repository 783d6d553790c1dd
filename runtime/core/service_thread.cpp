#include "core/service_thread.hpp"

#include <algorithm>

#include "core/system/thread_without_signals.hpp"

namespace ddp {

void ServiceThread::add(Client& client) {
  std::lock_guard const life(life_);
  if (!thread_.joinable()) {
    stop_ = false;
    thread_ = start_thread_without_signals([this] { run(); });
  }
  {
    std::lock_guard const lock(mutex_);
    clients_.push_back({&client, Clock::now()});
  }
  woken_.notify_one();
}

// A leaving client waits for its own serve() only. It does not end the thread while another client is being
// served: that client leaves later, and ends the thread.
void ServiceThread::remove(Client& client) noexcept {
  {
    std::unique_lock lock(mutex_);
    if (auto const entry = find(client); entry != clients_.end()) clients_.erase(entry);
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

void ServiceThread::wake(Client const& client) noexcept {
  {
    std::lock_guard const lock(mutex_);
    auto const entry = find(client);
    if (entry == clients_.end()) return;
    entry->due = Clock::time_point::min();
  }
  woken_.notify_one();
}

ServiceThread::Entries::iterator ServiceThread::find(Client const& client) noexcept {
  return std::ranges::find(clients_, &client, &Entry::client);
}

// The lock is not held during serve(): clients may come, go and be woken meanwhile.
void ServiceThread::serve(Entries::iterator entry, std::unique_lock<std::mutex>& lock) {
  Client& client = *entry->client;
  entry->due.reset();
  std::rotate(entry, entry + 1, clients_.end());
  serving_ = &client;
  lock.unlock();
  auto const again = client.serve();
  lock.lock();
  serving_ = nullptr;
  served_.notify_all();
  auto const still = find(client);
  if (still != clients_.end() && !still->due && again) still->due = Clock::now() + *again;
}

void ServiceThread::run() noexcept {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    auto const now = Clock::now();
    auto const is_due = [now](Entry const& entry) { return entry.due && *entry.due <= now; };
    if (auto const entry = std::ranges::find_if(clients_, is_due); entry != clients_.end()) {
      serve(entry, lock);
      continue;
    }
    std::optional<Clock::time_point> next;
    for (Entry const& entry : clients_) {
      if (entry.due && (!next || *entry.due < *next)) next = entry.due;
    }
    if (next) {
      woken_.wait_until(lock, *next);
    } else {
      woken_.wait(lock);
    }
  }
}

}  // namespace ddp

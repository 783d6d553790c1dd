// One thread that serves many objects.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ddp {

/// Serves its clients one at a time, each when it is due. Runs while there is a client. Any thread.
class ServiceThread {
 public:
  class Client {
   public:
    Client() = default;
    virtual ~Client() = default;
    Client(Client const&) = delete;
    Client& operator=(Client const&) = delete;
    /// Called in the thread. Returns when to call it again at the latest; nullopt: only when it is woken.
    virtual std::optional<std::chrono::milliseconds> serve() noexcept = 0;
  };

  ServiceThread() = default;
  ServiceThread(ServiceThread const&) = delete;
  ServiceThread& operator=(ServiceThread const&) = delete;
  /// All clients must have been removed.
  ~ServiceThread() = default;

  /// Throws std::system_error if no thread can be started.
  void add(Client& client);
  /// Waits for the client's serve() if it runs. Afterwards the client is not served. Not from serve().
  void remove(Client& client) noexcept;
  /// Serves `client` soon. Does nothing if it is not a client.
  void wake(Client const& client) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Client* client;
    std::optional<Clock::time_point> due;  ///< nullopt: not before it is woken
  };
  using Entries = std::vector<Entry>;

  void run() noexcept;
  void serve(Entries::iterator entry, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Entries::iterator find(Client const& client) noexcept;

  std::mutex life_;  ///< of thread_; locked before mutex_
  std::mutex mutex_;
  std::condition_variable woken_;
  std::condition_variable served_;
  Entries clients_;  ///< the one served last is at the end
  Client const* serving_ = nullptr;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddp

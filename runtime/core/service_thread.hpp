// One thread that serves many objects.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ddp {

/// Serves its clients one at a time, whoever is due. Runs while there is a client. Any thread may call it.
class ServiceThread {
 public:
  class Client {
   public:
    /// In the thread. Returns when it is to be called again at the latest; nullopt: when it is woken.
    virtual std::optional<std::chrono::milliseconds> serve() noexcept = 0;

   protected:
    ~Client() = default;
  };

  ServiceThread() = default;
  ServiceThread(ServiceThread const&) = delete;
  ServiceThread& operator=(ServiceThread const&) = delete;
  /// There must be no client any more.
  ~ServiceThread() = default;

  /// Throws std::system_error if there is no thread to be had.
  void add(Client& client);
  /// It is not served any more when this returns, which waits for a serve() that runs. Not from serve().
  void remove(Client& client) noexcept;
  /// It is served soon, if it is a client.
  void wake(Client const& client) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Client* client;
    std::optional<Clock::time_point> due;  ///< nullopt: it sleeps
  };
  using Entries = std::vector<Entry>;

  void run() noexcept;
  void serve(Entries::iterator entry, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Entries::iterator find(Client const& client) noexcept;

  std::mutex life_;  ///< of the thread; goes before the other
  std::mutex mutex_;
  std::condition_variable woken_;
  std::condition_variable served_;
  Entries clients_;  ///< who was served last stands last
  Client const* serving_ = nullptr;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddp

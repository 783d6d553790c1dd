// One thread that serves many objects.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ddp {

/// Serves its clients one after another, again and again. Runs while there is a client. Any thread may call
/// it.
class ServiceThread {
 public:
  class Client {
   public:
    /// In the thread. Returns when it is to be called again at the latest; nullopt: at the next wake().
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
  /// All are served soon.
  void wake() noexcept;

 private:
  void run() noexcept;
  [[nodiscard]] std::optional<std::chrono::milliseconds> serve_all(std::unique_lock<std::mutex>& lock);

  std::mutex life_;  ///< of the thread; goes before the other
  std::mutex mutex_;
  std::condition_variable woken_;
  std::condition_variable served_;
  std::vector<Client*> clients_;
  Client const* serving_ = nullptr;
  bool wake_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ddp

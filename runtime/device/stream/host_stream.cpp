#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/system/own_process.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/stream.hpp"
#include "device/stream/stream_watch.hpp"

namespace ddp {

// A ring of work items, drained in order by the worker or by a thread that waits, never by both at once.
class HostStream::Queue final : public StreamWatch {
 public:
  Queue() : ring_(kInitialCapacity) {}

  ~Queue() override { close(); }

  void check() const override {
    std::lock_guard const lock(mutex_);
    throw_error();
  }

  [[nodiscard]] bool has_ended() const noexcept override {
    std::lock_guard const lock(mutex_);
    return stopping_;
  }
  [[nodiscard]] bool is_over() const noexcept override {
    std::lock_guard const lock(mutex_);
    return stopping_ && (!error_ || is_known());
  }

  // Runs what is left and ends the worker. Later waits find everything done.
  void close() {
    if (!maker_.is_this()) return;
    {
      std::unique_lock lock(mutex_);
      while (count_ != 0 || running_) {
        if (!step(lock)) changed_.wait(lock);
      }
      stopping_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
    bool is_lost = false;
    {
      std::lock_guard const lock(mutex_);  // a stream that waits for this one may be fetching it
      is_lost = error_ && !error_fetched_;
      error_fetched_ = true;
    }
    if (is_lost) log_lost_error();
    used_.clear();
  }

  // Keeps what queued work uses alive until this queue ends.
  void keep_alive(std::shared_ptr<void const> const& used) {
    if (std::find(used_.begin(), used_.end(), used) == used_.end()) used_.push_back(used);
  }

  void push(Item const& item) {
    bool notify = false;
    {
      std::lock_guard const lock(mutex_);
      if (count_ == ring_.size()) grow();
      ring_[(head_ + count_) % ring_.size()] = item;
      ++count_;
      ++enqueued_;
      if (!caller_will_wait_ || item.always) {  // others wait for that one
        worker_may_run_ = true;
        notify = true;
        if (!worker_.joinable()) worker_ = start_thread_without_signals([this] { work(); });
      }
    }
    if (notify) changed_.notify_all();
  }

  [[nodiscard]] std::uint64_t last_ticket() {
    std::lock_guard const lock(mutex_);
    return enqueued_;
  }

  void expect_wait() noexcept { caller_will_wait_ = true; }

  // Returns when the first `ticket` items are done, running them here if the worker is idle.
  void wait_until(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    caller_will_wait_ = false;
    while (done_ < ticket) {
      if (!step(lock)) changed_.wait(lock);
    }
    throw_error();
  }

 private:
  static constexpr std::size_t kInitialCapacity = 64;

  // With mutex_ held, as the next two.
  void throw_error() const {
    if (!error_) return;
    error_fetched_ = true;
    std::rethrow_exception(error_);
  }

  void grow() {
    std::vector<Item> larger(ring_.size() * 2);
    for (std::size_t i = 0; i < count_; ++i) larger[i] = ring_[(head_ + i) % ring_.size()];
    ring_.swap(larger);
    head_ = 0;
  }

  // Runs the next item in this thread, unless another thread is running one or there is none.
  bool step(std::unique_lock<std::mutex>& lock) {
    if (running_ || count_ == 0) return false;
    Item item = ring_[head_];
    head_ = (head_ + 1) % ring_.size();
    --count_;
    running_ = true;
    bool const skip = error_ != nullptr && !item.always;
    lock.unlock();
    std::exception_ptr error;
    if (!skip) {
      try {
        item.run(item.storage);
      } catch (...) {
        error = std::current_exception();
      }
    }
    lock.lock();
    running_ = false;
    ++done_;
    if (error && !error_) error_ = error;
    changed_.notify_all();
    return true;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || (worker_may_run_ && !running_ && count_ != 0); });
      if (stopping_) return;
      step(lock);
      if (count_ == 0) worker_may_run_ = false;
    }
  }

  void log_lost_error() noexcept {
    try {
      std::rethrow_exception(error_);
    } catch (std::exception const& error) {
      log(LogLevel::error, text("work on a stream failed and nobody waited for it: ", error.what()));
    } catch (...) {
      log(LogLevel::error, "work on a stream failed and nobody waited for it");
    }
  }

  OwnProcess maker_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> ring_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
  std::uint64_t enqueued_ = 0;
  std::uint64_t done_ = 0;
  bool running_ = false;
  bool worker_may_run_ = false;
  std::atomic<bool> caller_will_wait_{false};
  bool stopping_ = false;
  mutable bool error_fetched_ = false;
  std::exception_ptr error_;
  std::vector<std::shared_ptr<void const>> used_;  // touched by the thread that enqueues
  std::thread worker_;
};

HostStream::HostStream(DeviceIndex index) : device_{DeviceKind::cpu, index}, queue_(new Queue, DeleteOwn{}) {}
HostStream::HostStream(InlineTag, DeviceIndex index) : device_{DeviceKind::cpu, index} {}
HostStream::~HostStream() {
  if (queue_) queue_->close();
}

std::unique_ptr<HostStream> HostStream::inline_stream(DeviceIndex index) {
  return std::unique_ptr<HostStream>(new HostStream(InlineTag{}, index));
}

void HostStream::keep_alive(std::shared_ptr<void const> const& used) {
  if (queue_) queue_->keep_alive(used);
}

void HostStream::push(Item const& item) { queue_->push(item); }

void HostStream::expect_wait() noexcept {
  if (queue_) queue_->expect_wait();
}

void HostStream::wait(Stream& other) { other.block(*this); }

void HostStream::block(HostStream& host) {
  if (is_inline() || &host == this) return;
  if (host.is_inline()) {
    synchronize();
    return;
  }
  host.keep_alive(queue_);
  Queue* const queue = queue_.get();
  host.enqueue([queue, ticket = queue->last_ticket()] { queue->wait_until(ticket); });
}

std::shared_ptr<StreamWatch const> HostStream::watch() const { return queue_; }

void HostStream::synchronize() {
  if (queue_) queue_->wait_until(queue_->last_ticket());
}

HostStream& host_stream(Stream& stream) {
  auto* const host = dynamic_cast<HostStream*>(&stream);
  require(host != nullptr,
          [&] { return text("expected a stream of the CPU, found one of ", stream.device()); });
  return *host;
}

}  // namespace ddp

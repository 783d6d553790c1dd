// Ordered work: what a CUDA stream is to a GPU, for CPUs too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "ddp/core/device.hpp"
#include "ddp/core/error.hpp"

namespace ddp {

/// A queue of work that runs in the order in which it was enqueued. Enqueue from one thread at a time.
///
/// Work that throws breaks the stream: what is behind it is skipped, and every later wait on the stream
/// throws the first exception again.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(Stream const&) = delete;
  Stream& operator=(Stream const&) = delete;

  [[nodiscard]] virtual Device device() const noexcept = 0;

  /// Work enqueued here from now on starts after all that has been enqueued on `other` until now. The host
  /// does not wait, unless this stream is the calling thread itself (HostStream::inline_stream).
  virtual void wait(Stream& other) = 0;

  /// The host waits until all enqueued work is done. Throws the stream's first exception. It has no deadline
  /// of its own: each piece of work has one.
  virtual void synchronize() = 0;

  /// A hint: the caller waits for this stream right after what it enqueues next. Never changes results.
  virtual void expect_wait() noexcept {}

 protected:
  Stream() = default;
};

/// A stream of the CPU: one ordered worker thread, or the calling thread itself.
///
/// Waking a thread costs about 12 µs, so a caller that is about to wait runs what is left in the queue
/// itself.
class HostStream final : public Stream {
 public:
  /// What a piece of work may capture: plain values and pointers, copied bit by bit, so that enqueuing
  /// allocates nothing.
  static constexpr std::size_t kMaxWorkBytes = 112;

  /// A stream with a worker thread. The thread starts with the first work.
  explicit HostStream(DeviceIndex index = DeviceIndex{0});
  /// A stream that is the calling thread: work runs inside enqueue(), and its exceptions leave from there.
  [[nodiscard]] static std::unique_ptr<HostStream> inline_stream(DeviceIndex index = DeviceIndex{0});
  /// Runs what is still enqueued, then ends the worker. Exceptions that nobody fetched are logged.
  ~HostStream() override;

  [[nodiscard]] Device device() const noexcept override { return device_; }
  void wait(Stream& other) override;
  void synchronize() override;
  void expect_wait() noexcept override;

  /// Enqueues a call of `work()`.
  template <class Work>
  void enqueue(Work work) {
    static_assert(std::is_trivially_copyable_v<Work> && std::is_trivially_destructible_v<Work>,
                  "capture plain values and pointers only");
    static_assert(sizeof(Work) <= kMaxWorkBytes && alignof(Work) <= alignof(std::max_align_t));
    if (is_inline()) {
      work();
      return;
    }
    Item item;
    ::new (static_cast<void*>(item.storage)) Work(work);
    item.run = [](void* storage) { (*std::launder(static_cast<Work*>(storage)))(); };
    push(item);
  }

  /// Whether work runs in the calling thread.
  [[nodiscard]] bool is_inline() const noexcept { return queue_ == nullptr; }

 private:
  struct Item {
    void (*run)(void* storage) = nullptr;
    alignas(std::max_align_t) std::byte storage[kMaxWorkBytes]{};
  };
  class Queue;
  struct InlineTag {};
  HostStream(InlineTag, DeviceIndex index);
  void push(Item const& item);

  Device device_;
  std::shared_ptr<Queue> queue_;  // streams that wait for this one share it
};

/// `stream` as a HostStream. Throws Error(invalid_argument) for a stream of another device kind.
[[nodiscard]] HostStream& host_stream(Stream& stream);

}  // namespace ddp

// Ordered work: what a CUDA stream is to a GPU, for CPUs too.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "ddp/core/device.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

class HostStream;
class StreamWatch;

/// A queue of work that runs in the order in which it was enqueued. Enqueue from one thread at a time; any
/// thread may synchronize().
///
/// Work that throws breaks the stream: later work is skipped, and every later wait on the stream throws the
/// first exception again.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(Stream const&) = delete;
  Stream& operator=(Stream const&) = delete;

  [[nodiscard]] virtual Device device() const noexcept = 0;  ///< Where its work runs.

  /// Work enqueued here from now on starts after everything enqueued on `other` until now. The host does not
  /// wait, unless this stream is the calling thread itself (HostStream::inline_stream).
  virtual void wait(Stream& other) = 0;

  /// The host waits until all enqueued work is done. Throws the stream's first exception. It has no deadline
  /// of its own: each piece of work has one.
  virtual void synchronize() = 0;

  /// Work enqueued on `host` from now on starts after everything enqueued here until now. HostStream::wait()
  /// calls it for streams of other devices.
  virtual void block(HostStream& host) = 0;

  /// Whether what is enqueued is recorded into a CUDA graph instead of being run.
  [[nodiscard]] virtual bool is_capturing() const { return false; }

  /// A hint: the caller waits for this stream right after what it enqueues next. Never changes results.
  virtual void expect_wait() noexcept {}

 protected:
  Stream() = default;
};

/// A stream of the CPU: one worker thread that runs work in order, or the calling thread itself.
///
/// Waking a thread costs about 12 µs, so a caller that is about to wait runs the rest of the queue itself.
class HostStream final : public Stream {
 public:
  /// What a piece of work may capture: plain values and pointers, copied bit by bit, so that enqueuing
  /// allocates nothing.
  static constexpr std::size_t kMaxWorkBytes = 112;

  /// A stream with a worker thread. The thread starts with the first work.
  explicit HostStream(DeviceIndex index = DeviceIndex{0});
  /// A stream that is the calling thread: work runs inside enqueue(), which throws its exceptions.
  [[nodiscard]] static std::unique_ptr<HostStream> inline_stream(DeviceIndex index = DeviceIndex{0});
  /// Runs what is still enqueued, then ends the worker. Exceptions that nobody fetched are logged.
  ~HostStream() override;

  [[nodiscard]] Device device() const noexcept override { return device_; }  ///< The CPU.
  void wait(Stream& other) override;
  void synchronize() override;
  void block(HostStream& host) override;
  void expect_wait() noexcept override;

  /// Enqueues a call of `work()`.
  template <class Work>
  void enqueue(Work work) {
    enqueue_item(work, false);
  }
  /// As enqueue(), for work that runs even if earlier work failed, as when others must be told of it.
  template <class Work>
  void enqueue_always(Work work) {
    enqueue_item(work, true);
  }

  /// Keeps `used`, which enqueued work needs, alive until this stream is destroyed.
  void keep_alive(std::shared_ptr<void const> const& used);

  /// Whether work runs in the calling thread.
  [[nodiscard]] bool is_inline() const noexcept { return queue_ == nullptr; }

  /// For the runtime: tells streams of other devices that wait for this one whether it has failed. Null if
  /// inline.
  [[nodiscard]] std::shared_ptr<StreamWatch const> watch() const;

 private:
  template <class Work>
  void enqueue_item(Work work, bool always) {
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
    item.always = always;
    push(item);
  }
  struct Item {
    void (*run)(void* storage) = nullptr;
    bool always = false;
    alignas(std::max_align_t) std::byte storage[kMaxWorkBytes]{};
  };
  class DDP_HIDDEN Queue;
  struct InlineTag {};
  HostStream(InlineTag, DeviceIndex index);
  void push(Item const& item);

  Device device_;
  std::shared_ptr<Queue> queue_;  // streams that wait for this one share it
};

/// `stream` as a HostStream. Throws Error(invalid_argument) for a stream of another device kind.
[[nodiscard]] HostStream& host_stream(Stream& stream);

/// A stream for a program's own work on `device`: on a CPU the calling thread itself; on a GPU one that keeps
/// order with CUDA's default stream. Throws Error(not_found) for a device that is not there.
[[nodiscard]] std::unique_ptr<Stream> make_compute_stream(Device device);

/// A stream for communication beside that work: on a CPU a worker thread; on a GPU one of the highest
/// priority.
[[nodiscard]] std::unique_ptr<Stream> make_comm_stream(Device device);

}  // namespace ddp

#include "ddp/device/event.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

#include "device/cuda/backend.hpp"
#include "device/stream/event_mark.hpp"

namespace ddp {
namespace {

// Never lowers `last`: a slower stream may reach an earlier mark later.
void raise(std::atomic<std::uint64_t>& last, std::uint64_t mark) {
  std::uint64_t now = last;
  while (now < mark && !last.compare_exchange_weak(now, mark)) {
  }
}

class HostMark final : public Event::Mark {
 public:
  void record(Stream& stream) override {
    HostStream& host = host_stream(stream);
    host.enqueue([this, mark = ++marks_] {
      if (mark < timed_) return;
      time_ = std::chrono::steady_clock::now();
      timed_ = mark;
    });
    // reached_ comes last: a thread that sees it may destroy the event.
    host.enqueue_always([this, mark = marks_] {
      bool const well = timed_ >= mark;
      raise(passed_, mark);
      passed_.notify_all();
      if (well) raise(reached_, mark);
    });
  }
  [[nodiscard]] bool reached() const override { return marks_ != 0 && reached_ == marks_; }
  void block(Stream& stream) override {
    host_stream(stream).enqueue([this, mark = marks_] {
      for (std::uint64_t now = passed_; now < mark; now = passed_) passed_.wait(now);
    });
  }
  [[nodiscard]] double milliseconds_since(Mark const& earlier) const override {
    return std::chrono::duration<double, std::milli>(time_ - dynamic_cast<HostMark const&>(earlier).time_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point time_;
  std::uint64_t marks_ = 0;
  std::uint64_t timed_ = 0;  // the last mark with no failure before it
  std::atomic<std::uint64_t> reached_{0};
  std::atomic<std::uint64_t> passed_{0};  // after failed work too, since somebody may wait for it
};

}  // namespace

Event::Event(Device device)
    : mark_(device.kind == DeviceKind::cpu ? std::make_unique<HostMark>() : cuda::make_mark(device)) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(Stream& stream) { mark_->record(stream); }
void Event::record_in_replays(Stream& stream) { mark_->record_in_replays(stream); }
CUevent_st* Event::handle() const noexcept { return mark_->handle(); }
bool Event::reached() const { return mark_->reached(); }
void Event::block(Stream& stream) { mark_->block(stream); }
double Event::milliseconds(Event const& from, Event const& to) {
  return to.mark_->milliseconds_since(*from.mark_);
}

}  // namespace ddp

#include "ddp/device/event.hpp"

#include <atomic>
#include <chrono>

#include "device/cuda_backend.hpp"

namespace ddp {
namespace {

class HostMark final : public Event::Mark {
 public:
  void record(Stream& stream) override {
    reached_ = false;
    host_stream(stream).enqueue([this] {
      time_ = std::chrono::steady_clock::now();
      reached_ = true;
    });
  }
  [[nodiscard]] bool reached() const override { return reached_; }
  [[nodiscard]] double milliseconds_since(Mark const& earlier) const override {
    return std::chrono::duration<double, std::milli>(time_ - dynamic_cast<HostMark const&>(earlier).time_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point time_;
  std::atomic<bool> reached_{false};
};

}  // namespace

Event::Event(Device device)
    : mark_(device.kind == DeviceKind::cpu ? std::make_unique<HostMark>() : cuda::make_mark(device)) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(Stream& stream) { mark_->record(stream); }
bool Event::reached() const { return mark_->reached(); }
double Event::milliseconds(Event const& from, Event const& to) {
  return to.mark_->milliseconds_since(*from.mark_);
}

}  // namespace ddp

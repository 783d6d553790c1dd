#include "observe/flight_recorder.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "core/system/sealed_memory.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "observe/progress_words.hpp"

namespace ddp {
namespace {

constexpr std::uint64_t kMagic = 0x34676F6C70646420;  // " ddplog4"

template <std::size_t N>
std::string text_of(std::array<char, N> const& chars) {
  return {chars.data(), strnlen(chars.data(), N)};
}

}  // namespace

// Everything that another process may read while it is written goes through atomic_ref.
using Words = std::array<std::uint64_t, sizeof(FlightRecorder::Entry) / sizeof(std::uint64_t)>;
static_assert(sizeof(Words) == sizeof(FlightRecorder::Entry));

struct FlightRecorder::Layout {
  struct Slot {
    std::uint64_t stamp = 0;  // the entry's number, from 1, once it is complete; 0 before
    Words words{};
  };
  std::uint64_t magic = 0;
  std::uint64_t recorded = 0;
  std::uint64_t names = 0;
  std::uint64_t steps = 0;
  std::uint64_t progress_stamp = 0;  // odd while it is being written; 0 before
  ProgressWords progress{};
  std::array<std::array<char, kMaxName + 1>, kMaxNames> name{};
  std::array<Slot, kCapacity> slots{};
};

std::size_t FlightRecorder::memory_bytes() noexcept { return sizeof(Layout); }

FlightRecorder::FlightRecorder(void* memory) noexcept : layout_(static_cast<Layout*>(memory)) {
  std::copy_n(kFurtherNames.data(), kFurtherNames.size(), layout_->name.back().data());
  std::atomic_ref(layout_->magic).store(kMagic, std::memory_order_release);
}

std::uint16_t FlightRecorder::name(std::string_view communicator) {
  std::uint64_t const number = std::atomic_ref(layout_->names).fetch_add(1, std::memory_order_relaxed);
  if (number >= kMaxNames - 1) return kMaxNames - 1;  // whose name the constructor has written
  std::copy_n(communicator.data(), std::min(communicator.size(), kMaxName), layout_->name[number].data());
  return static_cast<std::uint16_t>(number);
}

void FlightRecorder::record(Entry const& entry) noexcept {
  std::uint64_t const number = std::atomic_ref(layout_->recorded).fetch_add(1, std::memory_order_relaxed) + 1;
  Layout::Slot& slot = layout_->slots[number % kCapacity];
  std::atomic_ref const stamp(slot.stamp);
  stamp.store(0, std::memory_order_relaxed);
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  Entry timed = entry;
  timed.time_us = static_cast<std::int64_t>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000;
  Words words;
  std::memcpy(words.data(), &timed, sizeof words);
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::atomic_ref(slot.words[i]).store(words[i], std::memory_order_release);  // after the stamp's 0
  }
  stamp.store(number, std::memory_order_release);
}

void FlightRecorder::say_progress(Progress const& progress) noexcept {
  ProgressWords const packed = pack(progress);
  std::lock_guard const lock(progress_mutex_);
  std::atomic_ref const stamp(layout_->progress_stamp);
  stamp.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    std::atomic_ref(layout_->progress[i]).store(packed[i], std::memory_order_release);  // after the stamp
  }
  stamp.fetch_add(1, std::memory_order_release);
}

void FlightRecorder::say_steps(std::uint64_t steps) noexcept {
  std::atomic_ref(layout_->steps).store(steps, std::memory_order_relaxed);
}

std::uint64_t FlightRecorder::steps() const noexcept {
  return std::atomic_ref(layout_->steps).load(std::memory_order_relaxed);
}

std::optional<Progress> FlightRecorder::read_progress(Layout& layout) {
  std::atomic_ref const stamp(layout.progress_stamp);
  std::uint64_t const before = stamp.load(std::memory_order_acquire);
  ProgressWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref(layout.progress[i]).load(std::memory_order_acquire);
  }
  bool const whole = before % 2 == 0 && stamp.load(std::memory_order_relaxed) == before;
  Progress progress = before == 0 ? Progress{} : unpack(words);
  progress.steps = std::max(progress.steps, std::atomic_ref(layout.steps).load(std::memory_order_relaxed));
  return whole && progress != Progress{} ? std::optional(progress) : std::nullopt;
}

std::optional<FlightRecorder::Log> FlightRecorder::read(void const* memory) {
  auto& layout = *const_cast<Layout*>(static_cast<Layout const*>(memory));
  if (std::atomic_ref(layout.magic).load(std::memory_order_acquire) != kMagic) return std::nullopt;
  Log log;
  log.recorded = std::atomic_ref(layout.recorded).load(std::memory_order_acquire);
  std::uint64_t const names =
      std::min<std::uint64_t>(std::atomic_ref(layout.names).load(std::memory_order_acquire), kMaxNames);
  for (std::size_t i = 0; i < names; ++i) log.communicators.push_back(text_of(layout.name[i]));
  for (std::uint64_t back = std::min<std::uint64_t>(log.recorded, kCapacity); back-- > 0;) {
    std::uint64_t const number = log.recorded - back;
    Layout::Slot& slot = layout.slots[number % kCapacity];
    std::atomic_ref const stamp(slot.stamp);
    if (stamp.load(std::memory_order_acquire) != number) continue;
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = std::atomic_ref(slot.words[i]).load(std::memory_order_acquire);  // before the second look
    }
    auto const entry = std::bit_cast<Entry>(words);
    bool const whole = stamp.load(std::memory_order_relaxed) == number;
    bool const sane = entry.communicator < names && static_cast<std::size_t>(entry.dtype) < kDTypeCount;
    if (whole && sane) log.entries.push_back(entry);
  }
  log.progress = read_progress(layout);
  return log.entries.empty() && !log.progress ? std::nullopt : std::optional(std::move(log));
}

namespace {

// Never unmapped: operations may be called while the program's globals are torn down.
void* flight_memory() {
  std::size_t const bytes = FlightRecorder::memory_bytes();
  if (char const* const path = std::getenv("DDP_FLIGHT")) {
    FileDescriptor const file(::open(path, O_RDWR | O_CLOEXEC));
    if (file && is_sealed_memory(file, bytes)) {
      void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      if (memory != MAP_FAILED) return memory;
    }
    log(LogLevel::debug, text("DDP_FLIGHT=", path, " is no memory of ddp-launch for ", bytes, " bytes: ",
                              std::strerror(errno), "; operations are recorded in this process only"));
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_errno("memory for the flight recorder", errno);
  return memory;
}

}  // namespace

FlightRecorder& flight_recorder() {
  static FlightRecorder the_one(flight_memory());
  return the_one;
}

std::string describe(FlightRecorder::Entry const& entry) {
  std::string const what = text_of(entry.what);
  if (what == "barrier") return what;
  std::string const reduction = text_of(entry.reduction);
  std::string words = what;
  if (!reduction.empty()) words += text(" (", reduction, ")");
  if (what == "broadcast") words += text(" from rank ", entry.peer);
  if (what == "reduce") words += text(" to rank ", entry.peer);
  return text(words, " of ", entry.dtype, "[", entry.count, "]");
}

}  // namespace ddp

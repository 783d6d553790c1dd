// The last operations of a rank, kept where they survive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/dtype.hpp"
#include "ddp/observe/progress.hpp"

namespace ddp {

/// A ring of the last kCapacity operations that a process called, in memory that ddp-launch made and reads
/// after the process has ended, however it ended. Recording takes no lock, allocates nothing, and costs some
/// tens of nanoseconds. Any thread.
class FlightRecorder {
 public:
  static constexpr std::size_t kCapacity = 1024;  ///< operations
  static constexpr std::size_t kMaxNames = 256;   ///< communicators; later ones share kFurtherNames
  static constexpr std::string_view kFurtherNames = "others";  ///< the name of those beyond kMaxNames
  static constexpr std::size_t kMaxName = 47;                  ///< bytes; longer names are cut

  /// One call. A plain value: it lies in memory that processes share.
  struct Entry {
    std::uint64_t sequence = 0;       ///< among the collectives of its communicator, from 1; of a message 0
    std::uint64_t count = 0;          ///< elements, as Communicator counts them
    std::int64_t time_us = 0;         ///< of the call, microseconds since 1970, to some milliseconds
    std::int32_t peer = 0;            ///< root or peer
    std::uint16_t communicator = 0;   ///< what name() gave
    DType dtype = DType::u8;          ///< of the elements
    std::array<char, 16> what{};      ///< "all_reduce"
    std::array<char, 8> reduction{};  ///< "sum"; empty where nothing is reduced
  };

  /// What a ring holds.
  struct Log {
    std::uint64_t recorded = 0;              ///< ever, including those that have been overwritten
    std::vector<std::string> communicators;  ///< their names, by Entry::communicator
    std::vector<Entry> entries;              ///< the oldest first
    std::optional<Progress> progress;        ///< the last that was said, with the steps that were said since;
                                             ///< none while it is being written
  };

  /// Bytes that a ring takes.
  [[nodiscard]] static std::size_t memory_bytes() noexcept;
  /// Uses `memory`, which is zeroed or holds a ring already, and must outlive this object.
  explicit FlightRecorder(void* memory) noexcept;

  /// A number for Entry::communicator.
  [[nodiscard]] std::uint16_t name(std::string_view communicator);
  /// Records `entry` with the current time, in place of the oldest.
  void record(Entry const& entry) noexcept;
  /// Records how far this process is, in place of the last record.
  void say_progress(Progress const& progress) noexcept;
  /// Records how many steps a model of this process has ended. Called after each step, unlike say_progress().
  void say_steps(std::uint64_t steps) noexcept;
  [[nodiscard]] std::uint64_t steps() const noexcept;

  /// Reads a ring of another process, which may be writing, or may have written garbage: incomplete entries
  /// are left out. nullopt if there is no ring, or nothing in it.
  [[nodiscard]] static std::optional<Log> read(void const* memory);
  /// What this one has recorded; nullopt if nothing.
  [[nodiscard]] std::optional<Log> log() const { return read(layout_); }

 private:
  struct Layout;
  [[nodiscard]] static std::optional<Progress> read_progress(Layout& layout);
  Layout* layout_;
  std::mutex progress_mutex_;  // of writers
};

/// This process's recorder: in the file that DDP_FLIGHT names (ddp-launch sets it), or else in the process's
/// own memory, where a debugger finds it.
[[nodiscard]] FlightRecorder& flight_recorder();

/// "all_reduce (sum) of f32[256]", "broadcast from rank 1 of u8[64]".
[[nodiscard]] std::string describe(FlightRecorder::Entry const& entry);

}  // namespace ddp

// What the ranks called last, and what that tells after a failure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ddp/core/ids.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp::launcher {

/// What one rank called. nullopt: its program does not use this library, or called nothing.
struct RankFlight {
  Rank rank;
  std::optional<FlightRecorder::Log> log;
};

/// "all_reduce (sum) of f32[256], number 857 of ddp/0 on cpu": the last collective or message.
[[nodiscard]] std::string describe_last(FlightRecorder::Log const& log);

/// F8: the first collective that ranks of one communicator called differently, or that only some called, as
/// far back as all remember; nullopt if there is none. Messages are not compared: they differ by nature.
[[nodiscard]] std::optional<std::string> first_difference(std::span<RankFlight const> ranks);

/// F10: ranks that others wait for.
struct Straggling {
  std::string key;  ///< equal for as long as the same wait goes on
  std::chrono::microseconds waited{};
  std::string words;  ///< "rank 2 is late: ranks 0, 1 have called number 41 of ddp/0 on cpu, all_reduce …"
};

/// The longest wait at present, among ranks that run; `now_us` as FlightRecorder::Entry::time_us. If the CPU
/// threads run ahead of their GPUs, it is the wait between CPU threads. Waits that began before `since_us`
/// are over, though a membership has ended in the middle of them.
[[nodiscard]] std::optional<Straggling> find_straggling(std::span<RankFlight const> ranks,
                                                        std::int64_t now_us, std::int64_t since_us = 0);

}  // namespace ddp::launcher

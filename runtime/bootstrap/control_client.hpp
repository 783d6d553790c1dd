// A control plane whose calls are requests to a ControlStore, wherever that is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/control_store.hpp"
#include "ddp/bootstrap/control_plane.hpp"

namespace ddp {

/// How long a request waits after its deadline for the server to say who is missing.
inline constexpr std::chrono::milliseconds kAnswerGrace{2000};

/// Checks arguments, and turns failures into exceptions that name the operation and its key. Derived classes
/// only carry requests and answers.
class ControlClient : public ControlPlane {
 public:
  [[nodiscard]] Rank rank() const noexcept final { return rank_; }
  [[nodiscard]] int size() const noexcept final { return size_; }
  void put(std::string_view key, std::string_view value) final;
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline) final;
  [[nodiscard]] std::vector<std::string> all_gather(std::string_view name, std::string_view value,
                                                    std::span<Rank const> group, Deadline deadline) final;
  [[nodiscard]] std::vector<std::string> gather(std::string_view name, std::string_view value,
                                                std::span<Rank const> group, Deadline deadline) final;
  [[nodiscard]] Membership rebuild(std::string_view value, Deadline deadline) final;
  [[nodiscard]] std::vector<std::string> waits_of(std::span<Rank const> ranks) noexcept final;
  /// Without a launcher that watches the rank, only logs the failure.
  void report_error(Failure const& failure) noexcept override { log_failure(failure); }
  /// Into the flight recorder, where a ddp-launch on this host looks for it.
  void report_progress(Progress const& progress) noexcept final;

 protected:
  struct Outcome {
    std::optional<Failure> failure;  ///< without the operation: ask() does not know how it is called
    std::vector<std::string> values;
  };

  ControlClient(Rank rank, int size) : rank_(rank), size_(size) {}
  void log_failure(Failure const& failure) const noexcept;

  /// Numbers the request, and blocks until it is answered. When the deadline passes before that, the outcome
  /// is a failure with ErrorCode::timeout that says who or what is missing.
  [[nodiscard]] virtual Outcome ask(wire::Frame request, Deadline deadline) = 0;

 private:
  /// The answer, of so many `values` where that is known. `group` stands before the value.
  std::vector<std::string> answer_to(wire::Type type, std::string_view key, std::string_view value,
                                     std::string group, std::optional<std::size_t> values, Deadline deadline);
  std::vector<std::string> gathered(wire::Type type, std::string_view name, std::string_view value,
                                    std::span<Rank const> group, std::size_t values, Deadline deadline);

  Rank const rank_;
  int const size_;
};

}  // namespace ddp

#include "bootstrap/control_client.hpp"

#include <chrono>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "observe/flight_recorder.hpp"

namespace ddp {
namespace {

// put() has no deadline of its own: it waits for the server only, never for another rank.
constexpr std::chrono::seconds kServerDeadline{60};

std::string describe(std::string_view operation, std::string_view key) {
  return text("control plane: ", operation, "(\"", key, "\")");
}

std::string_view name_of(wire::Type request) {
  switch (request) {
    case wire::Type::put:
      return "put";
    case wire::Type::get:
      return "get";
    case wire::Type::collect:
      return "gather";
    case wire::Type::rebuild:
      return "rebuild";
    default:
      return "all_gather";
  }
}

bool concerns_the_group(ErrorCode code) {
  return code == ErrorCode::timeout || code == ErrorCode::peer_lost || code == ErrorCode::mismatch ||
         code == ErrorCode::aborted;
}

}  // namespace

void ControlClient::put(std::string_view key, std::string_view value) {
  answer_to(wire::Type::put, key, value, {}, 0, Deadline::after(kServerDeadline));
}

std::string ControlClient::get(std::string_view key, Deadline deadline) {
  return std::move(answer_to(wire::Type::get, key, {}, {}, 1, deadline).front());
}

std::vector<std::string> ControlClient::all_gather(std::string_view name, std::string_view value,
                                                   std::span<Rank const> group, Deadline deadline) {
  return gathered(wire::Type::gather, name, value, group, group.size(), deadline);
}

std::vector<std::string> ControlClient::gather(std::string_view name, std::string_view value,
                                               std::span<Rank const> group, Deadline deadline) {
  bool const is_first = !group.empty() && group.front() == rank_;
  return gathered(wire::Type::collect, name, value, group, is_first ? group.size() : 0, deadline);
}

std::vector<std::string> ControlClient::gathered(wire::Type type, std::string_view name,
                                                 std::string_view value, std::span<Rank const> group,
                                                 std::size_t values, Deadline deadline) {
  if (std::string const reason = why_no_group(group, rank_, size_); !reason.empty()) {
    throw Error(ErrorCode::invalid_argument, text(describe(name_of(type), name), ": ", reason));
  }
  return answer_to(type, name, value, wire::encode_group(group), values, deadline);
}

Membership ControlClient::rebuild(std::string_view value, Deadline deadline) {
  auto const answer = answer_to(wire::Type::rebuild, "ddp/rebuild", value, {}, std::nullopt, deadline);
  Membership membership;
  if (!answer.empty()) {
    wire::Reader reader(answer.front());
    membership.number = static_cast<int>(reader.u32());
    membership.ranks = wire::decode_group(reader, size_);
    membership.values.assign(answer.begin() + 1, answer.end());
  }
  if (membership.ranks.empty() || membership.values.size() != membership.ranks.size()) {
    throw Error(ErrorCode::protocol, text("rebuild: the answer holds ", membership.values.size(),
                                          " values of ", membership.ranks.size(), " ranks"));
  }
  begin_membership();
  return membership;
}

std::vector<std::string> ControlClient::waits_of(std::span<Rank const> ranks) noexcept {
  try {
    Outcome outcome =
        ask({wire::Type::waits, 0, {}, wire::encode_group(ranks)}, Deadline::after(kAnswerGrace / 2));
    if (!outcome.failure && outcome.values.size() == ranks.size()) return std::move(outcome.values);
  } catch (std::exception const& error) {  // the error message goes without this detail
    log(LogLevel::debug, error.what());
  }
  return {};
}

void ControlClient::report_progress(Progress const& progress) noexcept {
  try {
    flight_recorder().say_progress(progress);
  } catch (std::exception const& error) {  // no memory for the recorder
    log(LogLevel::warning, error.what());
  }
}

void ControlClient::log_failure(Failure const& failure) const noexcept {
  try {
    log(LogLevel::info, text("rank ", rank_, " reports ", to_string(failure.code), ": ", to_string(failure)));
  } catch (...) {  // out of memory: a lost log line must not become a failure
  }
}

std::vector<std::string> ControlClient::answer_to(wire::Type type, std::string_view key,
                                                  std::string_view value, std::string group,
                                                  std::optional<std::size_t> values, Deadline deadline) {
  std::string const operation = describe(name_of(type), key.substr(0, kMaxKey));
  if (key.empty() || key.size() > kMaxKey) {
    throw Error(ErrorCode::invalid_argument,
                text(operation, ": the key has ", key.size(), " bytes, expected 1 to ", kMaxKey));
  }
  if (value.size() > kMaxValue) {
    throw Error(ErrorCode::invalid_argument,
                text(operation, ": the value has ", to_string(Bytes{value.size()}), ", at most ",
                     to_string(Bytes{kMaxValue}),
                     " are allowed: large data goes through a "
                     "communicator"));
  }
  Outcome outcome = ask({type, 0, std::string(key), group.append(value)}, deadline);
  if (!outcome.failure) {
    if (outcome.values.size() == values.value_or(outcome.values.size())) return std::move(outcome.values);
    throw Error(ErrorCode::protocol,
                text(operation, ": the answer holds ", outcome.values.size(), " values, expected ", *values));
  }
  Failure& failure = *outcome.failure;
  failure.operation = operation;
  if (failure.code == ErrorCode::timeout) failure.waited = deadline.allowed();
  if (!concerns_the_group(failure.code)) throw Error(failure.code, to_string(failure));
  CommError const error(failure);
  // The launcher must learn that this rank waited for a lost one, even if the program catches this.
  if (failure.code == ErrorCode::peer_lost) report_failure(error);
  throw CommError(error);
}

}  // namespace ddp

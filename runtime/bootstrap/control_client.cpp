#include "bootstrap/control_client.hpp"

#include <chrono>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// put() has no deadline of its own: it waits for the server only, never for another rank.
constexpr std::chrono::seconds kServerDeadline{60};

std::string describe(std::string_view operation, std::string_view key) {
  return text("control plane: ", operation, "(\"", key, "\")");
}

bool concerns_the_group(ErrorCode code) {
  return code == ErrorCode::timeout || code == ErrorCode::peer_lost || code == ErrorCode::mismatch;
}

}  // namespace

void ControlClient::put(std::string_view key, std::string_view value) {
  checked({Request::Kind::put, key, value, {}}, Deadline::after(kServerDeadline));
}

std::string ControlClient::get(std::string_view key, Deadline deadline) {
  Outcome outcome = checked({Request::Kind::get, key, {}, {}}, deadline);
  if (outcome.values.size() != 1) {
    throw Error(ErrorCode::protocol, text(describe("get", key), ": the answer holds ", outcome.values.size(),
                                          " values, expected 1"));
  }
  return std::move(outcome.values.front());
}

std::vector<std::string> ControlClient::all_gather(std::string_view name, std::string_view value,
                                                   std::span<Rank const> group, Deadline deadline) {
  if (std::string const reason = why_no_group(group, rank_, size_); !reason.empty()) {
    throw Error(ErrorCode::invalid_argument, text(describe("all_gather", name), ": ", reason));
  }
  Outcome outcome = checked({Request::Kind::all_gather, name, value, group}, deadline);
  if (outcome.values.size() != group.size()) {
    throw Error(ErrorCode::protocol, text(describe("all_gather", name), ": the answer holds ",
                                          outcome.values.size(), " values, expected ", group.size()));
  }
  return std::move(outcome.values);
}

void ControlClient::report_error(ErrorCode code, std::string_view message) noexcept {
  try {
    log(LogLevel::info, text("rank ", rank_, " reports ", to_string(code), ": ", message));
  } catch (...) {  // out of memory: a lost log line must not become a failure
  }
}

ControlClient::Outcome ControlClient::checked(Request const& request, Deadline deadline) {
  static constexpr std::string_view kOperations[] = {"put", "get", "all_gather"};
  std::string_view const operation = kOperations[static_cast<std::size_t>(request.kind)];
  if (request.key.empty() || request.key.size() > kMaxKey) {
    throw Error(ErrorCode::invalid_argument,
                text(describe(operation, request.key.substr(0, kMaxKey)), ": the key has ",
                     request.key.size(), " bytes, expected 1 to ", kMaxKey));
  }
  if (request.value.size() > kMaxValue) {
    throw Error(ErrorCode::invalid_argument,
                text(describe(operation, request.key), ": the value has ",
                     to_string(Bytes{request.value.size()}), ", at most ", to_string(Bytes{kMaxValue}),
                     " are allowed: large data goes through a "
                     "communicator"));
  }
  Outcome outcome = ask(request, deadline);
  if (!outcome.failure) return outcome;
  auto const& [code, message] = *outcome.failure;
  std::string const what = code == ErrorCode::timeout
                               ? text(describe(operation, request.key), " timed out after ",
                                      seconds(deadline.allowed()), " s: ", message)
                               : text(describe(operation, request.key), ": ", message);
  if (concerns_the_group(code)) throw CommError(code, what);
  throw Error(code, what);
}

}  // namespace ddp

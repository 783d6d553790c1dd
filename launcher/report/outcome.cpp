#include "launcher/report/outcome.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bootstrap/failure_json.hpp"
#include "core/system/signal_name.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {

namespace {

constexpr std::size_t kLastLinesOfCallstack = 20;

std::string text_at(nlohmann::json const& object, char const* name) {
  auto const found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

std::vector<std::string> last_lines(std::string const& words) {
  std::vector<std::string> lines;
  Classic<std::istringstream> in(words);
  for (std::string line; std::getline(in, line);) {
    if (lines.size() == kLastLinesOfCallstack) lines.erase(lines.begin());
    lines.push_back(std::move(line));
  }
  return lines;
}

bool exited_well(RankOutcome const& outcome) {
  return outcome.ended && outcome.signal == 0 && outcome.exit_code == 0;
}

/// The index of the first element, by `before`, among those for which `counts` holds.
template <class Counts, class Before>
std::optional<std::size_t> first_of(std::span<RankOutcome const> outcomes, Counts const& counts,
                                    Before const& before) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (counts(outcomes[i]) && (!first || before(outcomes[i], outcomes[*first]))) first = i;
  }
  return first;
}

/// ddp-launch killed it because it was stopped and the rest of the job had ended.
bool killed_as_stopped(RankOutcome const& outcome) {
  return outcome.killed_by_launcher && !outcome.stopped.empty();
}

}  // namespace

std::optional<ReportedError> parse_error_file(std::string const& json) {
  auto const record = nlohmann::json::parse(json, nullptr, false);
  if (!record.is_object() || !record.contains("message")) return std::nullopt;
  ReportedError error;
  auto const& message = record["message"];
  if (message.is_string()) {
    error.failure = read_failure_json(json).value_or(Failure{.detail = message.get<std::string>()});
  } else if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    error.failure.detail = message["message"].get<std::string>();
    if (auto const extra = message.find("extraInfo"); extra != message.end()) {
      error.callstack = last_lines(text_at(*extra, "py_callstack"));
    }
  } else {
    return std::nullopt;
  }
  error.code = text_at(record, "code");
  return error;
}

bool left_early(RankOutcome const& outcome, std::size_t size) {
  return exited_well(outcome) && size > 1 && outcome.joined && !outcome.left;
}

std::size_t ended_well(std::span<RankOutcome const> outcomes) {
  return static_cast<std::size_t>(std::ranges::count_if(outcomes, [](RankOutcome const& each) {
    return exited_well(each) && !each.newcomer && !ignored_a_loss(each);
  }));
}

bool failed(RankOutcome const& outcome) {
  return outcome.unheard || (outcome.ended && (outcome.signal != 0 || outcome.exit_code != 0));
}

bool follows_another(Failure const& failure) {
  return failure.code == ErrorCode::peer_lost || failure.code == ErrorCode::aborted;
}

bool waited_for_another(Failure const& failure) {
  return failure.code == ErrorCode::timeout || follows_another(failure);
}

std::optional<Rank> began_with(Failure const& failure) {
  using Manner = Failure::Manner;
  bool const says_why = failure.manner == Manner::killed || failure.manner == Manner::exited ||
                        failure.manner == Manner::stopped || failure.manner == Manner::left;
  if (!says_why || !waited_for_another(failure) || failure.ranks.empty()) return std::nullopt;
  return failure.ranks.front();
}

bool is_consequence(RankOutcome const& outcome) {
  if (outcome.killed_by_launcher) return true;
  return outcome.error && follows_another(outcome.error->failure);
}

bool left_with_an_error(RankOutcome const& outcome) {
  return exited_well(outcome) && outcome.left && outcome.error && !is_consequence(outcome);
}

bool ignored_a_loss(RankOutcome const& outcome) {
  return exited_well(outcome) && outcome.error && follows_another(outcome.error->failure) &&
         outcome.error->failure.manner != Failure::Manner::left;
}

std::optional<std::size_t> first_cause(std::span<RankOutcome const> outcomes) {
  auto const failure = first_failure(outcomes);
  if (!failure || !outcomes[*failure].error) return failure;
  Failure const& told = outcomes[*failure].error->failure;
  auto const blamed = began_with(told);
  auto const counts = [&](RankOutcome const& rank) {
    bool const is_blamed = rank.rank == blamed;
    return rank.stopped.empty() ? is_blamed && rank.left && exited_well(rank)
                                : is_blamed || told.code == ErrorCode::timeout;
  };
  auto const behind = first_of(outcomes, counts, [&](RankOutcome const& one, RankOutcome const& /*other*/) {
    return one.rank == blamed;
  });
  return behind ? behind : failure;
}

std::optional<std::size_t> first_failure(std::span<RankOutcome const> outcomes) {
  auto const counts = [&](RankOutcome const& rank) {
    // If ddp-launch killed it, the cause is another.
    return failed(rank) && !rank.killed_by_launcher && !rank.survived;
  };
  auto const earlier = [](RankOutcome const& one, RankOutcome const& other) {
    return one.first_trouble < other.first_trouble;
  };
  auto const failure = first_of(outcomes, counts, [&](RankOutcome const& one, RankOutcome const& other) {
    bool const follows = is_consequence(one);
    return follows != is_consequence(other) ? !follows : earlier(one, other);
  });
  if (failure && !is_consequence(outcomes[*failure])) return failure;
  bool const told =
      std::ranges::any_of(outcomes, [](RankOutcome const& rank) { return rank.error.has_value(); });
  auto const is_unnoticed = [&](RankOutcome const& rank) {
    if (rank.survived) return false;
    return (failure && left_with_an_error(rank)) || ((failure || told) && left_early(rank, outcomes.size()));
  };
  if (auto const unnoticed = first_of(outcomes, is_unnoticed, earlier)) return unnoticed;
  return failure ? failure : first_of(outcomes, killed_as_stopped, earlier);
}

int exit_code_of(RankOutcome const& outcome, std::size_t size) {
  if (outcome.unheard || killed_as_stopped(outcome)) return EXIT_FAILURE;  // it has no exit code
  if (outcome.signal != 0) return exit_code::kSignalBase + outcome.signal;
  bool const left = left_early(outcome, size) || left_with_an_error(outcome);
  return left ? exit_code::kEarlyLeave : outcome.exit_code;
}

std::string describe_end(RankOutcome const& outcome, std::size_t size) {
  if (!outcome.stopped.empty()) {
    RankOutcome after = outcome;
    after.stopped.clear();
    return text("was stopped ", outcome.stopped, ", and then ",
                !outcome.ended               ? "did not end even after SIGKILL"
                : outcome.killed_by_launcher ? "was killed by ddp-launch"
                                             : describe_end(after, size));
  }
  if (outcome.unneeded)
    return "was ended by ddp-launch, since the others had ended before it could take part";
  if (outcome.late) return "was killed by ddp-launch, since it did not come to World::rebuild() in time";
  if (outcome.exec_error != 0) return text("could not be started: ", std::strerror(outcome.exec_error));
  if (outcome.unheard)
    return "has gone, and nothing tells how: its host cannot be reached, or its guard was killed";
  if (outcome.without_mpirun) return "was killed by its guard, since mpirun's daemon on that host had ended";
  if (outcome.signal != 0) {
    return text("was killed by signal ", outcome.signal, " (", signal_name(outcome.signal), ")",
                outcome.core_dumped ? ", core dumped" : "");
  }
  if (left_early(outcome, size)) {
    return "left before the others: it exited with code 0 without leaving the group";
  }
  return text("exited with code ", outcome.exit_code, outcome.newcomer ? " before it took part" : "",
              left_with_an_error(outcome) ? " in the middle of what others were in" : "");
}

}  // namespace ddp::launcher

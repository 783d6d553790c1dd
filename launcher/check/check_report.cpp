#include "launcher/check/check_report.hpp"

#include <algorithm>
#include <array>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/check/device_report.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::ordered_json;

std::array<int, 3> count(std::span<Check const> checks) {
  std::array<int, 3> counts{};
  for (Check const& check : checks) ++counts[static_cast<std::size_t>(check.verdict)];
  return counts;
}

char const* verdict_name(Verdict verdict) {
  constexpr std::array kInOrder{"OK", "WARNING", "FAILED"};
  return kInOrder.at(static_cast<std::size_t>(verdict));
}

}  // namespace

std::string check_text(std::span<Check const> checks) {
  std::size_t width = 0;
  for (Check const& check : checks) width = std::max(width, check.name.size());
  std::ostringstream out;
  for (Check const& check : checks) {
    out << std::left << std::setw(9) << verdict_name(check.verdict) << std::setw(static_cast<int>(width) + 2)
        << check.name << check.found;
    if (!check.expected.empty()) out << "; expected " << check.expected;
    if (!check.advice.empty()) out << ". To do: " << check.advice;
    out << '\n';
    for (std::string const& line : check.details) out << std::string(11 + width, ' ') << line << '\n';
  }
  auto const [ok, warnings, failed] = count(checks);
  out << ok << " ok, " << warnings << (warnings == 1 ? " warning, " : " warnings, ") << failed << " failed\n";
  return std::move(out).str();
}

std::string check_json(std::span<Check const> checks, Machine const& machine) {
  auto const [ok, warnings, failed] = count(checks);
  Json report{{"ok", ok},
              {"warnings", warnings},
              {"failed", failed},
              {"exit_code", exit_code_of(checks)},
              {"checks", Json::array()}};
  for (Check const& check : checks) {
    report["checks"].push_back({{"name", check.name},
                                {"verdict", verdict_name(check.verdict)},
                                {"found", check.found},
                                {"expected", check.expected},
                                {"advice", check.advice}});
  }
  report.update(Json::parse(devices_json(machine)));
  // Words of other libraries may be no UTF-8.
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddp::launcher

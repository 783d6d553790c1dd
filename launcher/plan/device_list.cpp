#include "launcher/plan/device_list.hpp"

#include <algorithm>
#include <charconv>

#include "ddp/core/text.hpp"
#include "device/registry/gpu_id.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string_view trimmed(std::string_view word) {
  std::size_t const first = word.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return word.substr(first, word.find_last_not_of(kBlanks) - first + 1);
}

/// What one entry of --gpus means.
struct ListEntry {
  GpuId id;  ///< of the device; of one that is not visible, a canonical spelling
  bool visible = false;
  std::string problem = {};  ///< why it can be no device at all
};

ListEntry entry_by_id(std::string_view token, std::span<GpuId const> visible) {
  auto const digits = id_digits(token);
  auto const dashes = std::count(token.begin() + kIdPrefix, token.end(), '-');
  bool const whole = digits && digits->size() + static_cast<std::size_t>(dashes) + kIdPrefix == token.size();
  if (!whole || digits->empty())
    return {{}, false, "is no UUID: expected GPU- or MIG- and hexadecimal digits"};
  auto found = devices_named(token, visible);
  auto const kind = token.substr(0, kIdPrefix);
  std::erase_if(found, [&](GpuId const& one) { return !one.value.starts_with(kind); });
  if (found.size() > 1) return {{}, false, "is the beginning of several devices' ids"};
  if (found.empty()) return {{std::string(kind) + *digits}, false};
  return {found.front(), true};
}

ListEntry entry_by_index(std::string_view token, std::span<GpuId const> visible) {
  std::size_t index = 0;
  auto const [stop, error] = std::from_chars(token.data(), token.data() + token.size(), index);
  if (token.empty() || stop != token.data() + token.size()) {
    return {{},
            false,
            "is no device: expected an index from 0, a UUID (GPU-…), a MIG id (MIG-…), or \"all\" alone"};
  }
  bool const there = error == std::errc{} && index < visible.size();
  return {there ? visible[index] : GpuId{text(index)}, there};
}

std::string what_is_visible(std::span<GpuId const> visible, std::optional<std::string> const& inherited) {
  std::string message;
  if (inherited) message = text("CUDA_VISIBLE_DEVICES=", *inherited, " leaves ");
  if (visible.empty()) return message + (inherited ? "no GPU" : "no GPU is visible");
  message +=
      text(visible.size(), visible.size() == 1 ? " GPU" : " GPUs", inherited ? " (" : " are visible (");
  for (std::size_t i = 0; i < visible.size(); ++i) message += text(i == 0 ? "" : ", ", i, " = ", visible[i]);
  return message + ")";
}

}  // namespace

std::optional<std::string> oddity(std::string const& value, std::size_t visible) {
  auto const tokens = entries_of(value);
  if (visible >= tokens.size() || value.empty()) return std::nullopt;
  std::string_view const unread = trimmed(tokens[visible]);
  if (unread.starts_with('-') || unread == "NoDevFiles") return std::nullopt;
  return text("CUDA_VISIBLE_DEVICES=", value, " leaves ", visible, visible == 1 ? " GPU" : " GPUs",
              " of its ", tokens.size(),
              tokens.size() == 1 ? " entry, which" : " entries: CUDA stops reading at one that",
              " is no device", tokens.size() == 1 ? "" : ", and takes none if one comes twice");
}

std::vector<GpuId> select_gpus(std::string_view list, std::span<GpuId const> visible,
                               std::optional<std::string> const& inherited, std::string const& trouble) {
  auto const refuse = [&](int code, std::string const& problem) {
    throw ExitError(code, text("--gpus ", list, ": ", problem, "; ", what_is_visible(visible, inherited),
                               code == exit_code::kNoDevice && !trouble.empty() ? "; " + trouble : ""));
  };
  auto const tokens = entries_of(list);
  if (tokens.size() == 1 && trimmed(tokens[0]) == "all") {
    if (visible.empty()) refuse(exit_code::kNoDevice, "there is no GPU to start a rank on");
    return {visible.begin(), visible.end()};
  }
  std::vector<GpuId> wanted;
  std::vector<std::string_view> missing;
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    std::string_view const token = trimmed(tokens[position]);
    ListEntry entry = is_device_id(token) ? entry_by_id(token, visible) : entry_by_index(token, visible);
    bool const again = std::find(wanted.begin(), wanted.end(), entry.id) != wanted.end();
    if (entry.problem.empty() && again) entry.problem = "names a device a second time";
    if (!entry.problem.empty()) {
      refuse(exit_code::kUsage, text("entry ", position + 1, ", \"", token, "\", ", entry.problem));
    }
    if (!entry.visible) missing.push_back(token);
    wanted.push_back(entry.id);
  }
  if (!missing.empty()) refuse(exit_code::kNoDevice, text("there is no device ", join(missing, ", ")));
  return wanted;
}

}  // namespace ddp::launcher

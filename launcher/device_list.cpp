#include "launcher/device_list.hpp"

#include <algorithm>
#include <charconv>

#include "ddp/core/text.hpp"
#include "launcher/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kBlanks = " \t";

std::vector<std::string_view> tokens_of(std::string_view list) {
  std::vector<std::string_view> tokens;
  for (std::size_t begin = 0;;) {
    std::size_t const comma = list.find(',', begin);
    tokens.push_back(list.substr(begin, comma - begin));
    if (comma == std::string_view::npos) return tokens;
    begin = comma + 1;
  }
}

std::string_view trimmed(std::string_view word) {
  std::size_t const first = word.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return word.substr(first, word.find_last_not_of(kBlanks) - first + 1);
}

bool is_device_id(std::string_view token) { return token.starts_with("GPU-") || token.starts_with("MIG-"); }

/// The one id that `token` is or begins; nullopt for none or several.
std::optional<std::string> by_id(std::string_view token, std::span<std::string const> ids) {
  std::optional<std::string> found;
  for (std::string const& id : ids) {
    if (!id.starts_with(token)) continue;
    if (found) return std::nullopt;
    found = id;
  }
  return found;
}

std::string what_is_visible(std::span<std::string const> visible,
                            std::optional<std::string> const& inherited) {
  std::string message;
  if (inherited) message = text("CUDA_VISIBLE_DEVICES=", *inherited, " leaves ");
  if (visible.empty()) return message + (inherited ? "no GPU" : "no GPU is visible");
  message +=
      text(visible.size(), visible.size() == 1 ? " GPU" : " GPUs", inherited ? " (" : " are visible (");
  for (std::size_t i = 0; i < visible.size(); ++i) message += text(i == 0 ? "" : ", ", i, " = ", visible[i]);
  return message + ")";
}

}  // namespace

std::vector<std::string> read_cuda_visible_devices(std::optional<std::string> const& value,
                                                   std::span<Gpu const> gpus) {
  std::vector<std::string> uuids;
  std::vector<std::string> ids;
  for (Gpu const& gpu : gpus) {
    uuids.push_back(gpu.uuid);
    ids.push_back(gpu.uuid);
    ids.insert(ids.end(), gpu.mig.begin(), gpu.mig.end());
  }
  if (!value) return uuids;
  std::vector<std::string> visible;
  for (std::string_view const raw : tokens_of(*value)) {
    std::string_view const token = trimmed(raw);
    std::optional<std::string> device;
    if (is_device_id(token)) {
      device = by_id(token, ids);
    } else {
      std::size_t index = 0;
      auto const [stop, error] = std::from_chars(token.data(), token.data() + token.size(), index);
      if (error == std::errc{} && stop != token.data() && index < uuids.size()) device = uuids[index];
    }
    if (!device) break;
    if (std::find(visible.begin(), visible.end(), *device) != visible.end()) return {};
    visible.push_back(*device);
  }
  return visible;
}

std::vector<std::string> select_gpus(std::string_view list, std::span<std::string const> visible,
                                     std::optional<std::string> const& inherited) {
  auto const refuse = [&](int code, std::string const& problem) {
    throw ExitError(code, text("--gpus ", list, ": ", problem, "; ", what_is_visible(visible, inherited)));
  };
  auto const tokens = tokens_of(list);
  if (tokens.size() == 1 && trimmed(tokens[0]) == "all") {
    if (visible.empty()) refuse(exit_code::kNoDevice, "there is no GPU to start a rank on");
    return {visible.begin(), visible.end()};
  }
  std::vector<std::string> wanted;
  std::vector<std::string_view> missing;
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    std::string_view const token = trimmed(tokens[position]);
    std::string const entry = text("entry ", position + 1, ", \"", token, "\", ");
    std::string id(token);
    if (is_device_id(token)) {
      auto const known = by_id(token, visible);
      auto const begins = std::count_if(visible.begin(), visible.end(),
                                        [&](std::string const& one) { return one.starts_with(token); });
      bool const hexadecimal = token.size() > 4 && token.find_first_not_of("0123456789abcdefABCDEF-/GPU",
                                                                           4) == std::string_view::npos;
      if (!hexadecimal)
        refuse(exit_code::kUsage, entry + "is no UUID: expected GPU- or MIG- and hexadecimal digits");
      if (begins > 1) refuse(exit_code::kUsage, entry + "is the beginning of several devices' ids");
      if (known) id = *known;
      if (!known) missing.push_back(token);
    } else {
      std::size_t index = 0;
      auto const [stop, error] = std::from_chars(token.data(), token.data() + token.size(), index);
      bool const number = !token.empty() && stop == token.data() + token.size();
      if (!number) {
        refuse(
            exit_code::kUsage,
            entry +
                "is no device: expected an index from 0, a UUID (GPU-…), a MIG id (MIG-…), or \"all\" alone");
      }
      bool const there = error == std::errc{} && index < visible.size();
      id = there ? visible[index] : std::to_string(index);
      if (!there) missing.push_back(token);
    }
    if (std::find(wanted.begin(), wanted.end(), id) != wanted.end()) {
      refuse(exit_code::kUsage, entry + "names a device a second time");
    }
    wanted.push_back(id);
  }
  if (!missing.empty()) refuse(exit_code::kNoDevice, text("there is no device ", join(missing, ", ")));
  return wanted;
}

}  // namespace ddp::launcher

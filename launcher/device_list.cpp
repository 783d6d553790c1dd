#include "launcher/device_list.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

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

constexpr std::size_t kIdPrefix = 4;   ///< "GPU-", "MIG-"
constexpr std::size_t kIdDigits = 32;  ///< hexadecimal digits of a UUID

/// The digits of an id or the beginning of one, in lower case. CUDA skips dashes wherever they stand and
/// stops after 32 digits. nullopt where something else comes before that.
std::optional<std::string> digits_of(std::string_view id) {
  std::string digits;
  for (char const c : id.substr(kIdPrefix)) {
    if (digits.size() == kIdDigits) break;
    if (c == '-') continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return digits;
}

/// The ids that `token`, an id or the beginning of one, may mean.
std::vector<std::string> matches(std::string_view token, std::span<std::string const> ids) {
  std::vector<std::string> found;
  auto const wanted = digits_of(token);
  for (std::string const& id : ids) {
    auto const digits = digits_of(id);
    if (wanted && digits && digits->starts_with(*wanted)) found.push_back(id);
  }
  return found;
}

/// An index as CUDA reads it: like strtol, so blanks and a sign may come before and anything after, and cut
/// to 32 bits. -1 where no digit comes.
int cuda_index(std::string_view token) {
  std::string const text(token);
  char* end = nullptr;
  long const number = std::strtol(text.c_str(), &end, 10);
  return end == text.c_str() ? -1 : static_cast<int>(number);
}

/// What one entry of --gpus means.
struct Entry {
  std::string id;  ///< of the device; of one that is not visible, a canonical spelling
  bool visible = false;
  std::string problem = {};  ///< why it can be no device at all
};

Entry entry_by_id(std::string_view token, std::span<std::string const> visible) {
  auto const digits = digits_of(token);
  auto const dashes = std::count(token.begin() + kIdPrefix, token.end(), '-');
  bool const whole = digits && digits->size() + static_cast<std::size_t>(dashes) + kIdPrefix == token.size();
  if (!whole || digits->empty())
    return {{}, false, "is no UUID: expected GPU- or MIG- and hexadecimal digits"};
  auto found = matches(token, visible);
  auto const kind = token.substr(0, kIdPrefix);
  std::erase_if(found, [&](std::string const& one) { return !one.starts_with(kind); });
  if (found.size() > 1) return {{}, false, "is the beginning of several devices' ids"};
  if (found.empty()) return {std::string(kind) + *digits, false};
  return {found.front(), true};
}

Entry entry_by_index(std::string_view token, std::span<std::string const> visible) {
  std::size_t index = 0;
  auto const [stop, error] = std::from_chars(token.data(), token.data() + token.size(), index);
  if (token.empty() || stop != token.data() + token.size()) {
    return {{},
            false,
            "is no device: expected an index from 0, a UUID (GPU-…), a MIG id (MIG-…), or \"all\" alone"};
  }
  bool const there = error == std::errc{} && index < visible.size();
  return {there ? visible[index] : std::to_string(index), there};
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
                                                   std::span<PhysicalGpu const> gpus) {
  std::vector<std::string> uuids;
  std::vector<std::string> ids;
  for (PhysicalGpu const& gpu : gpus) {
    uuids.push_back(gpu.uuid);
    ids.push_back(gpu.uuid);
    for (MigInstance const& instance : gpu.mig) ids.push_back(instance.uuid);
  }
  if (!value) return uuids;
  bool const by_id = is_device_id(*value);  // the first entry decides how all are read
  std::vector<std::string> visible;
  for (std::string_view const token : tokens_of(*value)) {
    std::optional<std::string> device;
    if (by_id) {
      auto const found = is_device_id(token) ? matches(token, ids) : std::vector<std::string>{};
      if (found.size() == 1) device = found.front();
    } else {
      int const index = cuda_index(token);
      if (index >= 0 && static_cast<std::size_t>(index) < uuids.size()) {
        device = uuids[static_cast<std::size_t>(index)];
      }
    }
    if (!device) break;
    if (std::find(visible.begin(), visible.end(), *device) != visible.end()) return {};
    visible.push_back(*device);
  }
  return visible;
}

std::optional<std::string> oddity(std::string const& value, std::size_t visible) {
  auto const tokens = tokens_of(value);
  if (visible >= tokens.size() || value.empty()) return std::nullopt;
  std::string_view const unread = trimmed(tokens[visible]);
  if (unread.starts_with('-') || unread == "NoDevFiles") return std::nullopt;
  return text("CUDA_VISIBLE_DEVICES=", value, " leaves ", visible, visible == 1 ? " GPU" : " GPUs",
              " of its ", tokens.size(),
              tokens.size() == 1 ? " entry, which" : " entries: CUDA stops reading at one that",
              " is no device", tokens.size() == 1 ? "" : ", and takes none if one comes twice");
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
    Entry entry = is_device_id(token) ? entry_by_id(token, visible) : entry_by_index(token, visible);
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

#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/json_input.hpp"
#include "checkpoint/sha256.hpp"
#include "core/parse_number.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr char const* kFormat = "ddp checkpoint";
constexpr int kVersion = 1;
constexpr char const* kChecksum = "manifest_sha256";

nlohmann::json records(std::vector<CheckpointFileRecord> const& files) {
  auto list = nlohmann::json::array();
  for (auto const& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return list;
}

[[noreturn]] void refuse_manifest(std::string const& why) { throw Error(ErrorCode::io, why); }

void check(CheckpointFileRecord const& file) {
  constexpr std::string_view kNoName("/\0", 2);
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (file.name.empty() || file.name == "." || file.name == ".." ||
      file.name.find_first_of(kNoName) != std::string::npos) {
    refuse_manifest(text("a file of it does not lie in the checkpoint's folder: \"", file.name, "\""));
  }
  if (file.sha256.size() != 64 || file.sha256.find_first_not_of(kDigits) != std::string::npos) {
    refuse_manifest(text("the file \"", file.name, "\" has no SHA-256 of 64 hexadecimal digits"));
  }
}

std::vector<CheckpointFileRecord> parse_records(nlohmann::json const& list) {
  std::vector<CheckpointFileRecord> files;
  std::set<std::string> names;
  for (auto const& each : list) {
    CheckpointFileRecord file{each.at("name").get<std::string>(),
                              whole_number<std::size_t>("bytes", each.at("bytes")),
                              each.at("sha256").get<std::string>()};
    check(file);
    if (!names.insert(file.name).second) refuse_manifest(text("the file \"", file.name, "\" stands twice"));
    files.push_back(std::move(file));
  }
  return files;
}

// Keys are sorted, so that equal values have equal text.
std::string checksum(nlohmann::json const& body) { return Sha256::of(body.dump()); }

}  // namespace

std::string rank_file(int rank) { return text("rank-", rank, ".safetensors"); }

std::string to_string(CheckpointName const& name) {
  std::string number = text(name.number);
  number.insert(0, 6 - std::min<std::size_t>(number.size(), 6), '0');
  return text(number, "-step-", name.step);
}

std::optional<CheckpointName> parse_checkpoint_name(std::string_view name) {
  constexpr std::string_view kStep = "-step-";
  std::size_t const middle = name.find(kStep);
  if (middle == std::string_view::npos) return std::nullopt;
  auto const number = parse_number<std::uint64_t>(name.substr(0, middle));
  auto const step = parse_number<std::uint64_t>(name.substr(middle + kStep.size()));
  if (!number || !step) return std::nullopt;
  CheckpointName const parsed{*number, *step};
  return to_string(parsed) == name ? std::optional(parsed) : std::nullopt;
}

CheckpointFileRecord const* CheckpointManifest::find(std::string_view file) const noexcept {
  auto const found = std::ranges::find(files, file, &CheckpointFileRecord::name);
  return found == files.end() ? nullptr : &*found;
}

std::string to_json(CheckpointManifest const& manifest) {
  nlohmann::json body{{"format", kFormat},
                      {"version", kVersion},
                      {"number", manifest.number},
                      {"ranks", manifest.ranks},
                      {"step", manifest.position.step},
                      {"epoch", manifest.position.epoch},
                      {"samples", manifest.position.samples},
                      {"metadata", manifest.position.metadata},
                      {"files", records(manifest.files)}};
  try {
    body[kChecksum] = checksum(body);
    return body.dump(2) + "\n";
  } catch (nlohmann::json::exception const& error) {
    throw Error(ErrorCode::invalid_argument, text("checkpoint metadata must be UTF-8: ", error.what()));
  }
}

CheckpointManifest parse_manifest(std::string_view json) {
  auto const refusal = [](std::exception const& error) {
    return Error(ErrorCode::io, text(kManifestFile, " cannot be used: ", error.what()));
  };
  try {
    require_shallow_json(json);
    auto body = nlohmann::json::parse(json);
    if (body.at("format") != kFormat || body.at("version") != kVersion) {
      refuse_manifest(text("its format is ", body.at("format").dump(), " version ", body.at("version").dump(),
                           ", expected \"", kFormat, "\" version ", kVersion));
    }
    auto const written = body.at(kChecksum).get<std::string>();
    body.erase(kChecksum);
    if (checksum(body) != written) refuse_manifest("its checksum does not hold");
    auto const number = [&](char const* member) {
      return whole_number<std::uint64_t>(member, body.at(member));
    };
    CheckpointManifest manifest;
    manifest.number = number("number");
    manifest.ranks = whole_number<int>("ranks", body.at("ranks"));
    if (manifest.ranks < 1) refuse_manifest("it is of 0 ranks");
    manifest.position = {number("step"), number("epoch"), number("samples"),
                         body.at("metadata").get<std::map<std::string, std::string>>()};
    manifest.files = parse_records(body.at("files"));
    return manifest;
  } catch (nlohmann::json::exception const& error) {
    throw refusal(error);
  } catch (Error const& error) {
    throw refusal(error);
  }
}

}  // namespace ddp

#include "parallel/checkpoint_manifest.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "ddp/core/text.hpp"
#include "parallel/sha256.hpp"

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

std::vector<CheckpointFileRecord> parse_records(nlohmann::json const& list) {
  std::vector<CheckpointFileRecord> files;
  for (auto const& file : list) {
    files.push_back({file.at("name").get<std::string>(), file.at("bytes").get<std::size_t>(),
                     file.at("sha256").get<std::string>()});
  }
  return files;
}

// Keys are sorted, so that equal values have equal text.
std::string checksum(nlohmann::json const& body) { return Sha256::of(body.dump()); }

}  // namespace

std::string rank_file(int rank) { return text("rank-", rank, ".safetensors"); }

std::string to_string(CheckpointName const& name) {
  std::string number = std::to_string(name.number);
  number.insert(0, 6 - std::min<std::size_t>(number.size(), 6), '0');
  return text(number, "-step-", name.step);
}

std::optional<CheckpointName> parse_checkpoint_name(std::string_view name) {
  CheckpointName parsed;
  std::string const copy(name);
  unsigned long long number = 0;
  unsigned long long step = 0;
  if (std::sscanf(copy.c_str(), "%llu-step-%llu", &number, &step) != 2) return std::nullopt;  // NOLINT
  parsed = {number, step};
  return to_string(parsed) == name ? std::optional(parsed) : std::nullopt;
}

CheckpointFileRecord const* CheckpointManifest::find(std::string_view file) const noexcept {
  auto const found =
      std::find_if(files.begin(), files.end(), [&](auto const& each) { return each.name == file; });
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
  try {
    auto body = nlohmann::json::parse(json);
    if (body.at("format") != kFormat || body.at("version") != kVersion) {
      throw Error(ErrorCode::io,
                  text(kManifestFile, " is of format ", body.at("format").dump(), " version ",
                       body.at("version").dump(), ", expected \"", kFormat, "\" version ", kVersion));
    }
    auto const written = body.at(kChecksum).get<std::string>();
    body.erase(kChecksum);
    if (checksum(body) != written) {
      throw Error(ErrorCode::io, text(kManifestFile, " is damaged: its checksum does not hold"));
    }
    CheckpointManifest manifest;
    manifest.number = body.at("number").get<std::uint64_t>();
    manifest.ranks = body.at("ranks").get<int>();
    manifest.position = {body.at("step").get<std::uint64_t>(), body.at("epoch").get<std::uint64_t>(),
                         body.at("samples").get<std::uint64_t>(),
                         body.at("metadata").get<std::map<std::string, std::string>>()};
    manifest.files = parse_records(body.at("files"));
    return manifest;
  } catch (nlohmann::json::exception const& error) {
    throw Error(ErrorCode::io, text(kManifestFile, " is damaged: ", error.what()));
  }
}

std::string to_json(WrittenFiles const& written) {
  using Json = nlohmann::json;
  return Json{{"files", records(written.files)}, {"error", written.error}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

WrittenFiles parse_written_files(std::string_view json) {
  try {
    auto const body = nlohmann::json::parse(json);
    return {parse_records(body.at("files")), body.at("error").get<std::string>()};
  } catch (nlohmann::json::exception const& error) {
    throw CommError(ErrorCode::protocol, text("a rank's word about a checkpoint: ", error.what()));
  }
}

}  // namespace ddp

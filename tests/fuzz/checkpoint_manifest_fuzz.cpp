// F17: manifests of checkpoints, and their names. Input: the text; it is read as each of these, and as a
// manifest once more after its checksum was put right, which no fuzzer guesses.
#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/sha256.hpp"
#include "fuzz/property.hpp"

namespace {

using namespace ddp;
using fuzz::must;

constexpr char const* kChecksum = "manifest_sha256";

void check_records(std::vector<CheckpointFileRecord> const& files) {
  std::set<std::string> names;
  for (CheckpointFileRecord const& file : files) {
    std::filesystem::path const name(file.name);
    must(name.has_filename() && name == name.filename() && file.name != "." && file.name != "..",
         "a checkpoint's files lie in its folder");
    must(file.name.find('\0') == std::string::npos, "a file's name ends where its text ends");
    must(names.insert(file.name).second, "no file stands twice");
    must(file.sha256.size() == 64 &&
             std::ranges::all_of(file.sha256, [](unsigned char c) { return std::isxdigit(c) != 0; }),
         "a SHA-256 has 64 digits");
  }
}

void read_manifest(std::string_view json) {
  CheckpointManifest manifest;
  try {
    manifest = parse_manifest(json);
  } catch (Error const& error) {
    must(error.code() == ErrorCode::io, "a bad manifest is ErrorCode::io");
    return;
  }
  must(manifest.ranks >= 1, "a rank wrote it");
  check_records(manifest.files);
  std::string const written = to_json(manifest);
  CheckpointManifest const again = parse_manifest(written);
  must(again.files == manifest.files && again.number == manifest.number && again.ranks == manifest.ranks,
       "what was read and written is read again");
  must(to_json(again) == written, "a manifest is written in one way");
}

void read_with_its_checksum(std::string_view json) {
  auto body = nlohmann::json::parse(json, nullptr, false);
  if (!body.is_object()) return;
  body.erase(kChecksum);
  body[kChecksum] = Sha256::of(body.dump());
  read_manifest(body.dump());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const input = fuzz::as_text(data, size);
  read_manifest(input);
  read_with_its_checksum(input);
  if (auto const name = parse_checkpoint_name(input)) {
    must(to_string(*name) == input, "a checkpoint's name is written in one way");
  }
  return 0;
}

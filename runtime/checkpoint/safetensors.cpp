#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "checkpoint/json_input.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr char const* kMetadata = "__metadata__";

// In the order of DType.
constexpr std::array<char const*, kDTypeCount> kSafetensorsNames{"F64", "F32", "F16", "BF16", "I32",
                                                                 "I64", "U8",  "I8",  "I16",  "BOOL"};

[[noreturn]] void refuse_safetensors(std::string const& what) {
  throw Error(ErrorCode::io, text("no safetensors file: ", what));
}

std::vector<std::size_t> numbers_of(nlohmann::json const& record, char const* member) {
  auto const& list = record.at(member);
  if (!list.is_array())
    refuse_safetensors(text("expected \"", member, "\" to be an array, found ", list.dump()));
  std::vector<std::size_t> numbers;
  for (auto const& number : list) numbers.push_back(whole_number<std::size_t>(member, number));
  return numbers;
}

SafetensorsEntry parse_entry(std::string const& name, nlohmann::json const& record) {
  SafetensorsEntry entry;
  entry.name = name;
  auto const dtype = record.at("dtype").get<std::string>();
  if (dtype.starts_with("F8_")) {
    throw Error(ErrorCode::io, text("tensor \"", name, "\" has the dtype ", dtype,
                                    ", an 8-bit float: not supported; convert it to BF16, F16 or F32"));
  }
  auto const* const known = std::ranges::find(kSafetensorsNames, dtype);
  if (known == kSafetensorsNames.end())
    refuse_safetensors(text("tensor \"", name, "\" has the dtype ", dtype, ", unknown here"));
  entry.dtype = static_cast<DType>(known - kSafetensorsNames.begin());
  entry.shape = Shape(std::span<std::size_t const>(numbers_of(record, "shape")));
  auto const offsets = numbers_of(record, "data_offsets");
  if (offsets.size() != 2)
    refuse_safetensors(text("tensor \"", name, "\" has ", offsets.size(), " data_offsets, not 2"));
  entry.begin = offsets[0];
  entry.end = offsets[1];
  std::size_t const bytes = entry.shape.count() * size_of(entry.dtype);
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    refuse_safetensors(text("tensor \"", name, "\" is ", entry.dtype, entry.shape, ", ", bytes, " B, from ",
                            entry.begin, " to ", entry.end));
  }
  return entry;
}

}  // namespace

std::string safetensors_header(std::span<SafetensorsEntry const> entries,
                               std::map<std::string, std::string> const& metadata) {
  // In the order of the bytes, so that any reader goes through the file once.
  std::string json = "{";
  std::unordered_set<std::string_view> names{kMetadata};
  auto const add = [&json](std::string const& name, nlohmann::ordered_json const& value) {
    if (json.size() > 1) json += ',';
    json += nlohmann::json(name).dump() + ':' + value.dump();
  };
  try {
    if (!metadata.empty()) add(kMetadata, metadata);
    for (SafetensorsEntry const& entry : entries) {
      require(!entry.name.empty() && names.insert(entry.name).second, [&] {
        return text("a tensor cannot be called \"", entry.name, "\" in a safetensors file: the name is ",
                    entry.name.empty()        ? "empty"
                    : entry.name == kMetadata ? "reserved"
                                              : "there twice");
      });
      auto const extents = entry.shape.extents();
      add(entry.name, {{"dtype", kSafetensorsNames.at(static_cast<std::size_t>(entry.dtype))},
                       {"shape", std::vector<std::size_t>(extents.begin(), extents.end())},
                       {"data_offsets", {entry.begin, entry.end}}});
    }
  } catch (nlohmann::json::exception const& error) {
    throw Error(ErrorCode::invalid_argument, text("names and metadata must be UTF-8: ", error.what()));
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(static_cast<unsigned char>(std::uint64_t{json.size()} >> shift));
  }
  return bytes + json;
}

std::size_t safetensors_header_length(std::string_view bytes) {
  if (bytes.size() < kSafetensorsLength) refuse_safetensors("it ends within the header's length");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kSafetensorsLength; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  if (length > kMaxSafetensorsHeader) {
    refuse_safetensors(text("its header has ", length, " B, at most ", kMaxSafetensorsHeader, " are read"));
  }
  return static_cast<std::size_t>(length);
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, std::size_t data_bytes) {
  std::vector<SafetensorsEntry> entries;
  try {
    require_shallow_json(json);
    auto const header = nlohmann::json::parse(json);
    for (auto const& [name, record] : header.items()) {
      if (name != kMetadata) entries.push_back(parse_entry(name, record));
    }
  } catch (nlohmann::json::exception const& error) {
    refuse_safetensors(text("its header is not what it should be: ", error.what()));
  } catch (Error const& error) {
    if (error.code() == ErrorCode::io) throw;
    refuse_safetensors(error.what());  // an impossible shape, or malformed numbers
  }
  std::ranges::sort(entries, {}, [](auto const& entry) { return std::pair(entry.begin, entry.end); });
  std::size_t end = 0;
  for (SafetensorsEntry const& entry : entries) {
    if (entry.begin != end)
      refuse_safetensors(text("tensor \"", entry.name, "\" begins at ", entry.begin, ", not at ", end));
    end = entry.end;
  }
  if (end != data_bytes) refuse_safetensors(text("its tensors take ", end, " B, there are ", data_bytes));
  return entries;
}

}  // namespace ddp

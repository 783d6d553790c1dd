// F17: headers of safetensors files. Input: the size of the data in decimal digits, a line end, the header's
// JSON. The first 8 bytes are read as a header's length, too.
#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "fuzz/property.hpp"

namespace {

using namespace ddp;
using fuzz::must;

void read_length(std::string_view bytes) {
  try {
    must(safetensors_header_length(bytes) <= kMaxSafetensorsHeader, "no length above the limit is accepted");
  } catch (Error const& error) {
    must(error.code() == ErrorCode::io, "a bad length is ErrorCode::io");
  }
}

bool same(SafetensorsEntry const& a, SafetensorsEntry const& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin && a.end == b.end;
}

void write_and_read_again(std::vector<SafetensorsEntry> const& entries, std::size_t data_bytes) {
  std::string header;
  try {
    header = safetensors_header(entries, {{"format", "pt"}});
  } catch (Error const& error) {
    must(error.code() == ErrorCode::invalid_argument, "what is not written is ErrorCode::invalid_argument");
    must(std::ranges::any_of(entries, [](auto const& entry) { return entry.name.empty(); }),
         "only an empty name is read and not written");
    return;
  }
  must(safetensors_header_length(header) == header.size() - kSafetensorsLength,
       "a header's length is its own");
  auto const again =
      parse_safetensors_header(std::string_view(header).substr(kSafetensorsLength), data_bytes);
  must(std::ranges::is_permutation(again, entries, same), "what was read and written is read again");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const input = fuzz::as_text(data, size);
  read_length(input);
  std::size_t data_bytes = 0;
  auto const [stop, error] = std::from_chars(input.data(), input.data() + input.size(), data_bytes);
  std::string_view const json = input.substr(static_cast<std::size_t>(stop - input.data()));
  std::vector<SafetensorsEntry> entries;
  try {
    entries = parse_safetensors_header(json, data_bytes);
  } catch (Error const& refused) {
    must(refused.code() == ErrorCode::io, "a bad header is ErrorCode::io");
    return 0;
  }
  std::size_t end = 0;
  for (SafetensorsEntry const& entry : entries) {
    must(entry.begin == end && entry.end >= entry.begin, "tensors leave no holes");
    must(entry.end - entry.begin == entry.shape.count() * size_of(entry.dtype),
         "a tensor has its shape's bytes");
    end = entry.end;
  }
  must(end == data_bytes, "tensors take all of the data");
  write_and_read_again(entries, data_bytes);
  return 0;
}

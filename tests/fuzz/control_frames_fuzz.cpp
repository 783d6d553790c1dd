// L14: frames of the control socket, in pieces of any size. Input: limits, size of the pieces, then the
// stream.
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bootstrap/wire.hpp"
#include "fuzz/property.hpp"

namespace {

using namespace ddp;
using fuzz::must;

constexpr int kJobSize = 4;

/// A frame's value is refused as a violation of the protocol, or says exactly what its bytes say.
template <class Decode>
void value_is_exact(std::string_view value, Decode decode_and_encode) {
  std::string again;
  try {
    again = decode_and_encode();
  } catch (Error const& error) {
    must(error.code() == ErrorCode::protocol, "a value that lies is ErrorCode::protocol");
    return;
  }
  must(again == value, "encoding what was decoded gives the same value");
}

std::string encode_values(std::vector<std::string> const& values) {
  std::string runs;
  std::uint32_t count = 0;
  for (std::size_t first = 0; first < values.size(); ++count) {
    std::size_t end = first + 1;
    while (end < values.size() && values[end] == values[first]) ++end;
    wire::append_u32(runs, static_cast<std::uint32_t>(end - first));
    wire::append_u32(runs, static_cast<std::uint32_t>(values[first].size()));
    runs += values[first];
    first = end;
  }
  std::string out;
  wire::append_u32(out, count);
  return out + runs;
}

void read_value(wire::Frame const& frame) {
  std::string_view const value = frame.value;
  switch (frame.type) {
    case wire::Type::join:
      value_is_exact(value, [&] { return wire::encode_join(wire::decode_join(value)); });
      break;
    case wire::Type::gather:
      value_is_exact(value, [&] {
        wire::Reader reader(value);
        auto const group = wire::decode_group(reader, kJobSize);
        must(group.size() <= kJobSize, "no group is larger than the job");
        return wire::encode_group(group).append(reader.rest());
      });
      break;
    case wire::Type::error:
    case wire::Type::failed:
      value_is_exact(value, [&] {
        Failure const failure = wire::decode_failure(value);
        must(!to_string(failure.code).empty(), "an error code has a name");
        return wire::encode_failure(failure, std::numeric_limits<std::uint32_t>::max());
      });
      break;
    case wire::Type::done:
      value_is_exact(value, [&] { return encode_values(wire::decode_values(value)); });
      break;
    case wire::Type::lost:
      value_is_exact(value, [&] {
        return wire::encode_failure(wire::decode_lost(value), std::numeric_limits<std::uint32_t>::max());
      });
      break;
    default:  // values without a schema
      break;
  }
}

/// What a stream says: its whole frames, encoded anew, and how it ended.
struct Reading {
  std::string frames;
  bool refused = false;
  bool inside_frame = false;
  friend bool operator==(Reading const&, Reading const&) = default;
};

Reading read_stream(std::string_view stream, std::size_t piece, wire::Limits limits, bool look_into_values) {
  wire::Decoder decoder(limits);
  Reading reading;
  try {
    while (!stream.empty()) {
      std::span<char const> part(stream.data(), std::min(piece, stream.size()));
      stream.remove_prefix(part.size());
      while (auto const frame = decoder.take(part)) {
        must(frame->key.size() <= limits.key && frame->value.size() <= limits.value, "limits are kept");
        reading.frames += wire::encode(*frame);
        if (look_into_values) read_value(*frame);
      }
      must(part.empty(), "a stream without an error is read to its end");
    }
  } catch (Error const& error) {
    must(error.code() == ErrorCode::protocol, "a broken stream is ErrorCode::protocol");
    reading.refused = true;
  }
  reading.inside_frame = !reading.refused && decoder.inside_frame();
  return reading;
}

// In inputs version 0 stands for the one of today, so that they are read further than the header.
std::string with_version(std::string_view input) {
  std::string stream(input);
  std::string const old("DDPC\0\0", 6);
  std::string now;
  wire::append_u32(now, wire::kMagic);
  now += static_cast<char>(wire::kVersion);
  now += '\0';
  for (std::size_t at = stream.find(old); at != std::string::npos; at = stream.find(old, at)) {
    stream.replace(at, old.size(), now);
  }
  return stream;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  constexpr wire::Limits kAllLimits[] = {wire::from_rank(kJobSize), wire::kFromServer, wire::kBeforeJoin};
  fuzz::Input input(data, size);
  wire::Limits const limits = kAllLimits[input.byte() % std::size(kAllLimits)];
  std::size_t const piece = std::size_t{input.byte()} + 1;
  std::string const from_version_0 = with_version(input.rest());
  std::string_view const stream = from_version_0;

  Reading const reading = read_stream(stream, piece, limits, true);
  must(stream.starts_with(reading.frames), "encoding the frames gives the bytes that they came from");
  must(reading.refused || reading.inside_frame == (reading.frames.size() < stream.size()),
       "what is no whole frame is the beginning of one");
  must(reading == read_stream(stream, std::max<std::size_t>(stream.size(), 1), limits, false),
       "where a stream is cut changes nothing");
  return 0;
}

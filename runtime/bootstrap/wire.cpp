#include "bootstrap/wire.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::wire {
namespace {

template <class Integer>
void append_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    out.push_back(static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xffU));
  }
}

template <class Integer>
Integer little_endian(char const* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return static_cast<Integer>(value);
}

[[noreturn]] void violation(std::string const& what) { throw Error(ErrorCode::protocol, what); }

bool known(std::uint16_t type) {
  return (type >= static_cast<std::uint16_t>(Type::join) &&
          type <= static_cast<std::uint16_t>(Type::waits)) ||
         (type >= static_cast<std::uint16_t>(Type::done) && type <= static_cast<std::uint16_t>(Type::lost));
}

// 32-bit words, followed by `rest`.
std::string pack(std::initializer_list<int> words, std::string_view rest = {}) {
  std::string out;
  for (int const word : words) append_u32(out, static_cast<std::uint32_t>(word));
  return out.append(rest);
}

int decode_int(Reader& reader, std::string_view what) {
  std::uint32_t const value = reader.u32();
  if (value > 0x7fffffffU)
    violation(text("a frame's ", what, " is ", value, ", expected at most 2147483647"));
  return static_cast<int>(value);
}

}  // namespace

std::string encode_header(Type type, std::uint64_t request, std::size_t key_length,
                          std::size_t value_length) {
  if (key_length > 0xffffffffU || value_length > 0xffffffffU) {
    throw Error(ErrorCode::invalid_argument,
                text("a frame of the control plane holds at most 4 GiB - 1, not ", value_length, " B"));
  }
  std::string out;
  out.reserve(kHeaderSize + key_length);
  append_little_endian(out, kMagic);
  append_little_endian(out, kVersion);
  append_little_endian(out, static_cast<std::uint16_t>(type));
  append_little_endian(out, request);
  append_little_endian(out, static_cast<std::uint32_t>(key_length));
  append_little_endian(out, static_cast<std::uint32_t>(value_length));
  return out;
}

std::string encode(Frame const& frame) {
  return encode_header(frame.type, frame.request, frame.key.size(), frame.value.size())
      .append(frame.key)
      .append(frame.value);
}

void append_u32(std::string& out, std::uint32_t value) { append_little_endian(out, value); }

std::uint32_t Reader::u32() { return little_endian<std::uint32_t>(bytes(4).data()); }

std::string_view Reader::bytes(std::size_t count) {
  if (count > bytes_.size()) {
    violation(
        text("a frame's value ends too early: ", count, " more bytes expected, ", bytes_.size(), " found"));
  }
  std::string_view const taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

void Reader::end() const {
  if (!bytes_.empty())
    violation(text("a frame's value goes on behind its end, for ", bytes_.size(), " bytes"));
}

std::string encode_join(Join const& join) { return pack({join.rank.value(), join.size}); }

Join decode_join(std::string_view value) {
  Reader reader(value);
  int const rank = decode_int(reader, "rank");
  int const size = decode_int(reader, "size");
  reader.end();
  return {Rank{rank}, size};
}

std::string encode_group(std::span<Rank const> group) {
  std::string out = pack({static_cast<int>(group.size())});
  for (Rank const rank : group) append_u32(out, static_cast<std::uint32_t>(rank.value()));
  return out;
}

std::vector<Rank> decode_group(Reader& reader, int size) {
  int const count = decode_int(reader, "group");
  if (count > size) violation(text("a group of ", count, " ranks in a job of ", size));
  std::vector<Rank> group;
  for (int i = 0; i < count; ++i) group.emplace_back(decode_int(reader, "rank"));
  return group;
}

std::string encode_trouble(ErrorCode code, std::string_view message) {
  return pack({static_cast<int>(code)}, message);
}

Trouble decode_trouble(std::string_view value) {
  Reader reader(value);
  std::uint32_t const code = reader.u32();
  if (code > static_cast<std::uint32_t>(ErrorCode::device)) violation(text("unknown error code ", code));
  return {static_cast<ErrorCode>(code), std::string(reader.rest())};
}

std::string encode_lost(LostRank const& lost) {
  return pack({lost.rank.value(), static_cast<int>(lost.manner)}, lost.reason);
}

LostRank decode_lost(std::string_view value) {
  Reader reader(value);
  int const rank = decode_int(reader, "rank");
  std::uint32_t const manner = reader.u32();
  if (manner > static_cast<std::uint32_t>(LostRank::Manner::left)) violation(text("unknown manner ", manner));
  return {Rank{rank}, static_cast<LostRank::Manner>(manner), std::string(reader.rest())};
}

std::vector<std::string> decode_values(std::string_view value) {
  Reader reader(value);
  std::uint32_t const count = reader.u32();
  std::vector<std::string> values;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint32_t const length = reader.u32();
    values.emplace_back(reader.bytes(length));
  }
  reader.end();
  return values;
}

std::optional<Frame> Decoder::take(std::span<char const>& bytes) {
  auto const fill = [&](std::string& part, std::size_t length) {
    std::size_t const count = std::min(length - part.size(), bytes.size());
    part.append(bytes.data(), count);
    bytes = bytes.subspan(count);
    return part.size() == length;
  };
  if (header_.size() < kHeaderSize) {
    if (!fill(header_, kHeaderSize)) return std::nullopt;
    read_header();
  }
  if (!fill(frame_.key, key_length_) || !fill(frame_.value, value_length_)) return std::nullopt;
  header_.clear();
  return std::exchange(frame_, Frame{});
}

void Decoder::read_header() {
  char const* const header = header_.data();
  auto const magic = little_endian<std::uint32_t>(header);
  auto const version = little_endian<std::uint16_t>(header + 4);
  auto const type = little_endian<std::uint16_t>(header + 6);
  key_length_ = little_endian<std::uint32_t>(header + 16);
  value_length_ = little_endian<std::uint32_t>(header + 20);
  if (magic != kMagic)
    violation(text("not a frame of the control plane: it begins with ", magic, ", not ", kMagic));
  if (version != kVersion)
    violation(text("the peer speaks version ", version, ", this side version ", kVersion));
  if (!known(type)) violation(text("unknown frame type ", type));
  if (key_length_ > limits_.key)
    violation(text("a key of ", key_length_, " B, at most ", limits_.key, " allowed here"));
  if (value_length_ > limits_.value) {
    violation(text("a value of ", value_length_, " B, at most ", limits_.value, " allowed here"));
  }
  frame_.type = static_cast<Type>(type);
  frame_.request = little_endian<std::uint64_t>(header + 8);
}

Frame decode(std::string_view message, Limits limits, Rank from) {
  std::span<char const> bytes(message);
  auto frame = Decoder(limits).take(bytes);
  if (!frame) violation(text("rank ", from, " sent half a frame"));
  return std::move(*frame);
}

}  // namespace ddp::wire

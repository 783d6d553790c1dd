#include "bootstrap/wire.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::wire {
namespace {

constexpr Rank kNobody{-1};

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
          type <= static_cast<std::uint16_t>(Type::rebuild)) ||
         (type >= static_cast<std::uint16_t>(Type::done) && type <= static_cast<std::uint16_t>(Type::begun));
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

std::optional<Rank> decode_rank_or_nobody(Reader& reader) {
  Rank const rank{static_cast<int>(reader.u32())};
  if (rank < kNobody) violation("a frame's rank is negative");
  return rank == kNobody ? std::nullopt : std::optional(rank);
}

template <class Enum>
Enum decode_enum(Reader& reader, std::string_view what, Enum last) {
  std::uint32_t const value = reader.u32();
  if (value > static_cast<std::uint32_t>(last)) violation(text("a frame's ", what, " is unknown: ", value));
  return static_cast<Enum>(value);
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

std::string encode_join(Join const& join) {
  return pack({join.rank.value(), join.size, join.generation, join.process},
              std::string_view(join.host).substr(0, kLongestHost));
}

Join decode_join(std::string_view value) {
  Reader reader(value);
  int const rank = decode_int(reader, "rank");
  int const size = decode_int(reader, "size");
  int const generation = decode_int(reader, "generation");
  int const process = decode_int(reader, "process");
  std::string_view const host = reader.rest();
  if (host.size() > kLongestHost) violation(text("a host's name of ", host.size(), " bytes"));
  return {Rank{rank}, size, generation, process, std::string(host)};
}

std::string encode_rank(Rank rank) { return pack({rank.value()}, {}); }

Rank decode_rank(Reader& reader) { return Rank{decode_int(reader, "rank")}; }

// Runs of ranks at equal distances: how many, then of each the first rank, how many, the distance. The group
// of all ranks is one run, so that n ranks that name it send n words and not n².
std::string encode_group(std::span<Rank const> group) {
  std::string runs;
  std::uint32_t count = 0;
  for (std::size_t first = 0; first < group.size(); ++count) {
    auto const distance = [&](std::size_t i) { return group[i].value() - group[i - 1].value(); };
    std::size_t end = first + 1;
    int const step = end < group.size() ? distance(end) : 0;
    while (end < group.size() && distance(end) == step) ++end;
    runs += pack({group[first].value(), static_cast<int>(end - first), step});
    first = end;
  }
  return pack({static_cast<int>(count)}, runs);
}

std::vector<Rank> decode_group(Reader& reader, int size) {
  std::vector<Rank> group;
  std::string_view const all = reader.unread();
  for (std::uint32_t runs = reader.u32(); runs > 0; --runs) {
    int const first = decode_int(reader, "rank");
    int const count = decode_int(reader, "group");
    int const step = static_cast<int>(reader.u32());
    if (count < 1 || count > size - static_cast<int>(group.size())) {
      violation(text("a group of more than ", size, " ranks in a job of ", size, ", or a run of none"));
    }
    for (int i = 0; i < count; ++i) {
      std::int64_t const rank = first + static_cast<std::int64_t>(step) * i;
      if (rank < 0 || rank > 0x7fffffff) violation("a frame's group has a rank that there is not");
      group.emplace_back(static_cast<int>(rank));
    }
  }
  if (!all.starts_with(encode_group(group))) violation("a frame's group is not in its shortest form");
  return group;
}

// Ranks get a quarter of the room, so do host and operation together.
std::string encode_failure(Failure const& failure, std::size_t most) {
  std::size_t const ranks = std::min(failure.ranks.size(), most / 16);
  constexpr std::int64_t kMostMs = 0x7fffffff;
  std::string out = pack({static_cast<int>(failure.code), static_cast<int>(failure.manner), failure.status,
                          failure.by.value_or(kNobody).value(), failure.ended_by.value_or(kNobody).value(),
                          static_cast<int>(std::clamp<std::int64_t>(failure.waited.count(), 0, kMostMs)),
                          static_cast<int>(ranks)});
  for (std::size_t i = 0; i < ranks; ++i)
    append_u32(out, static_cast<std::uint32_t>(failure.ranks[i].value()));
  for (std::string_view const words : {failure.host, failure.operation}) {
    std::size_t const length = std::min(words.size(), most / 8);
    append_u32(out, static_cast<std::uint32_t>(length));
    out.append(words.substr(0, length));
  }
  return out.append(failure.detail, 0, most - out.size());
}

Failure decode_failure(std::string_view value) {
  Reader reader(value);
  Failure failure;
  failure.code = decode_enum(reader, "code", ErrorCode::device);
  failure.manner = decode_enum(reader, "manner", Failure::Manner::differs);
  failure.status = static_cast<int>(reader.u32());
  failure.by = decode_rank_or_nobody(reader);
  failure.ended_by = decode_rank_or_nobody(reader);
  failure.waited = std::chrono::milliseconds(decode_int(reader, "waited"));
  for (std::uint32_t ranks = reader.u32(); ranks > 0; --ranks) {
    failure.ranks.emplace_back(decode_int(reader, "rank"));
  }
  for (std::string* const words : {&failure.host, &failure.operation}) *words = reader.bytes(reader.u32());
  failure.detail = reader.rest();
  return failure;
}

Failure decode_lost(std::string_view value) {
  Failure lost = decode_failure(value);
  if (lost.ranks.empty()) violation("a lost rank is none");
  return lost;
}

std::vector<std::string> decode_values(std::string_view value) {
  Reader reader(value);
  std::vector<std::string> values;
  std::size_t bytes = 0;
  for (std::uint32_t runs = reader.u32(); runs > 0; --runs) {
    std::uint32_t const count = reader.u32();
    std::string_view const same = reader.bytes(reader.u32());
    bool const is_new = values.empty() || values.back() != same;
    bytes += count * same.size();
    if (count == 0 || !is_new || values.size() + count > kMostValues || bytes > kFromServer.value) {
      violation(text("an answer has a run of ", count, " values of ", same.size(), " bytes"));
    }
    values.insert(values.end(), count, std::string(same));
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

}  // namespace ddp::wire

// Frames between a rank and the control server: a fixed binary schema, little endian, with limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/ids.hpp"

namespace ddp::wire {

/// Changes whenever a frame's meaning changes: both sides must be of one version.
inline constexpr std::uint16_t kVersion = 9;
inline constexpr std::uint32_t kMagic = 0x43504444;  ///< the bytes "DDPC"

enum class Type : std::uint16_t {
  // From a rank. `request` is the rank's own number for it; the answer carries the same.
  join = 1,  ///< value: rank u32, size u32, generation u32, then the host's name. The first frame, of another
  ///< host the second; answered by done (one value, a record of the server's host and process) or failed
  put = 2,       ///< key, value. Answered by done or failed
  get = 3,       ///< key. Answered by done (one value) or failed
  gather = 4,    ///< key: name; value: the group, then the rank's bytes. Answered by done or failed
  withdraw = 5,  ///< `request`: the one whose deadline passed. Answered by failed unless answered already
  error = 6,     ///< value: a failure. Not answered
  ended = 7,     ///< key: how a rank behind an mpirun has ended, for the server's owner; value: as of join.
                 ///< From its guard, in place of join. Answered by done when the guard may end too
  leave = 8,     ///< Answered by done
  notice = 9,  ///< key: name; value: to whom, as the group of gather, then its bytes. The server passes it on
               ///< with the sender's rank u32 in front of the bytes. Not answered
  waits = 10,  ///< value: as of gather, without bytes. Answered by done: for each rank what it waits in, or
               ///< nothing
  hello = 11,  ///< value: the job's secret. The first frame from another host; answered by done, and not at
               ///< all if it is wrong
  collect = 12,  ///< as gather, but only the first rank of the group gets the values
  rebuild = 13,  ///< value: the rank's bytes. Answered by begun or failed
  // From the server.
  done = 16,    ///< value: runs of equal values: how many runs u32, then for each how many values u32, their
                ///< length u32, their bytes once
  failed = 17,  ///< value: a failure
  lost = 18,    ///< value: a failure, of a rank that takes part no longer
  interrupted = 19,  ///< value: what ControlPlane::interruption() is from now on, a failure
  begun = 20,        ///< as done, of the membership that begins: its number u32 with its ranks, as the group
                     ///< of gather; then what each of them gave
};

/// On the wire: magic u32, version u16, type u16, request u64, key length u32, value length u32.
inline constexpr std::size_t kHeaderSize = 24;

struct Frame {
  Type type = Type::join;
  std::uint64_t request = 0;
  std::string key;
  std::string value;
};

/// The header alone: for senders that have the value in several pieces.
[[nodiscard]] std::string encode_header(Type type, std::uint64_t request, std::size_t key_length,
                                        std::size_t value_length);
[[nodiscard]] std::string encode(Frame const& frame);

void append_u32(std::string& out, std::uint32_t value);

/// Reads a frame's value piece by piece. Throws Error(protocol) when it ends too early.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint32_t u32();
  [[nodiscard]] std::string_view bytes(std::size_t count);
  [[nodiscard]] std::string_view rest() { return bytes(bytes_.size()); }
  [[nodiscard]] std::string_view unread() const noexcept { return bytes_; }
  /// Throws Error(protocol) if anything is left.
  void end() const;

 private:
  std::string_view bytes_;
};

// The frames' values, each with its reverse, which throws Error(protocol).
struct Join {
  Rank rank;
  int size = 1;
  int generation = 0;  ///< see RankInfo
  int process = 0;     ///< as its host numbers it
  std::string host{};  ///< its name, cut to kLongestHost
};
inline constexpr std::size_t kLongestHost = 255;
[[nodiscard]] std::string encode_join(Join const& join);
[[nodiscard]] Join decode_join(std::string_view value);

/// The group that stands before the caller's bytes in the value of `gather`: how many runs u32, then for each
/// its first rank u32, how many u32, the distance between them i32. In its shortest form.
[[nodiscard]] std::string encode_group(std::span<Rank const> group);
/// Takes the group off the front; a count above `size` is an error.
[[nodiscard]] std::vector<Rank> decode_group(Reader& reader, int size);

/// The most bytes that a frame spends on a failure.
inline constexpr std::size_t kLongestFailure = (64_KiB).value;
/// Code, manner, status, by, ended_by, waited (ms), the number of ranks and those, host, operation, detail:
/// numbers as u32, texts with their lengths, except the last text, which fills the rest. In at most `most`
/// bytes (256 or more): what is too long is cut, the detail first.
[[nodiscard]] std::string encode_failure(Failure const& failure, std::size_t most = kLongestFailure);
[[nodiscard]] Failure decode_failure(std::string_view value);
/// The sender in front of the bytes of a `notice` that the server passes on.
[[nodiscard]] std::string encode_rank(Rank rank);
[[nodiscard]] Rank decode_rank(Reader& reader);

/// decode_failure(), and Error(protocol) if it names no rank.
[[nodiscard]] Failure decode_lost(std::string_view value);

/// The values of an answer, as RankConnection::send() says them.
[[nodiscard]] std::vector<std::string> decode_values(std::string_view value);
inline constexpr std::size_t kMostValues = std::size_t{1} << 20;

/// The longest key and value that the reader of a stream takes.
struct Limits {
  std::size_t key = 0;
  std::size_t value = 0;
};
inline constexpr std::size_t kLongestEnd = 1024;
inline constexpr Limits kBeforeJoin{kLongestEnd, 16 + kLongestHost};
/// From a rank of a job of `size` ranks.
[[nodiscard]] constexpr Limits from_rank(int size) noexcept {
  return {ControlPlane::kMaxKey, ControlPlane::kMaxValue + 16 + 6 * static_cast<std::size_t>(size)};
}
/// From the server, which is trusted more: an answer holds the values of all ranks, 4 GiB - 1 at most.
inline constexpr Limits kFromServer{ControlPlane::kMaxKey, 0xffffffffU};

/// Puts frames together from bytes as they come, split and merged in any way. Memory grows with the bytes
/// that really arrived, not with a length that was only announced.
class Decoder {
 public:
  explicit Decoder(Limits limits) : limits_(limits) {}
  void set_limits(Limits limits) noexcept { limits_ = limits; }

  /// Takes bytes off the front of `bytes`, as many as the current frame needs; gives the frame when it is
  /// whole. Throws Error(protocol) as soon as the header is whole and wrong; the stream cannot be read any
  /// further.
  [[nodiscard]] std::optional<Frame> take(std::span<char const>& bytes);
  /// A frame has begun and is not whole.
  [[nodiscard]] bool inside_frame() const noexcept { return !header_.empty(); }

 private:
  void read_header();

  Limits limits_;
  std::string header_;
  std::size_t key_length_ = 0;
  std::size_t value_length_ = 0;
  Frame frame_;
};

}  // namespace ddp::wire

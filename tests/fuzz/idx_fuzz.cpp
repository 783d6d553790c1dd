// IDX files, plain and compressed. Input: a byte that says how many dimensions are asked for and whether the
// file is compressed, then its content.
#include "data/idx.hpp"

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "fuzz/property.hpp"

namespace {

using ddp::fuzz::must;

/// A file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : descriptor_(::memfd_create("idx", MFD_CLOEXEC)) {
    bool const written =
        ::write(descriptor_, content.data(), content.size()) == static_cast<ssize_t>(content.size());
    must(written, "the fuzz target could write its file");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(MemoryFile const&) = delete;
  MemoryFile& operator=(MemoryFile const&) = delete;
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

std::string compressed(std::string_view content) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;  // the largest window, and gzip's header
  must(deflateInit2(&stream, 1, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib works");
  std::string out(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  must(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib works");
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

std::size_t product(std::vector<std::size_t> const& extents) {
  std::size_t count = 1;
  for (std::size_t const extent : extents) count *= extent;
  return count;
}

/// By the format alone, whether `content` is a whole file. nullopt for arrays without elements, whose other
/// extents may claim anything.
std::optional<bool> is_whole(std::string_view content, std::size_t dimensions) {
  auto const word = [&](std::size_t at) {
    std::size_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(content[at + i]);
    return value;
  };
  if (content.size() < 4 + 4 * dimensions || word(0) != (0x0800 | dimensions)) return false;
  std::size_t const elements = content.size() - 4 - 4 * dimensions;
  std::size_t count = 1;
  for (std::size_t axis = 0; axis < dimensions; ++axis) {
    std::size_t const extent = word(4 + 4 * axis);
    if (extent == 0) return std::nullopt;
    count = count > std::numeric_limits<std::size_t>::max() / extent ? elements + 1 : count * extent;
    count = std::min(count, elements + 1);  // as wrong as anything larger
  }
  return count == elements;
}

/// Whether it is accepted.
bool read(std::string_view file, std::size_t dimensions, std::size_t most) {
  MemoryFile const memory(file);
  try {
    data::Idx const idx = data::read_idx(memory.path(), dimensions);
    must(idx.extents.size() == dimensions, "it has the dimensions that were asked for");
    must(idx.values.size() == product(idx.extents), "it has exactly the elements that its header declares");
    must(idx.values.size() <= most, "no element is made up");
    return true;
  } catch (data::InputError const& error) {
    must(error.kind() == data::InputError::Kind::damaged, "what is there and cannot be used is damaged");
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  constexpr std::size_t kMostGrowth = 1100;  // deflate's limit is 1032
  ddp::fuzz::Input input(data, size);
  std::uint8_t const choice = input.byte();
  std::size_t const dimensions = 1 + choice % 4;
  std::string_view const content = input.rest();
  bool const compress = (choice & 4U) != 0;
  bool const is_gzip = content.starts_with("\x1f\x8b");

  bool const accepted =
      read(compress ? compressed(content) : content, dimensions, kMostGrowth * content.size());
  if (compress || !is_gzip) {
    must(accepted == is_whole(content, dimensions).value_or(accepted),
         "accepted are whole files, and no others");
  }
  return 0;
}

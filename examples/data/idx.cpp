#include "data/idx.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "ddp/core/text.hpp"

namespace data {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::size_t kMaxBytes = std::size_t{1} << 32;

std::string hex(std::uint32_t word) {
  std::ostringstream out;
  out << "0x" << std::hex << std::setw(8) << std::setfill('0') << word;
  return std::move(out).str();
}

// A file open for reading through zlib, which hands plain files through as they are.
class File {
 public:
  explicit File(std::filesystem::path const& path) : path_(path) {
    int const descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      throw InputError(InputError::Kind::missing,
                       ddp::text(path.string(), ": cannot be opened: ", std::strerror(errno)));
    }
    handle_ = gzdopen(descriptor, "rb");
    if (handle_ == nullptr) {
      ::close(descriptor);
      throw std::bad_alloc();
    }
    gzbuffer(handle_, static_cast<unsigned>(kChunk) / 4);
  }
  ~File() { gzclose_r(handle_); }
  File(File const&) = delete;
  File& operator=(File const&) = delete;

  // As many of `count` bytes as there are. Damage of the compressed stream throws.
  std::size_t read(std::uint8_t* out, std::size_t count) {
    std::size_t done = 0;
    while (done < count) {
      int const got = gzread(handle_, out + done, static_cast<unsigned>(std::min(count - done, kChunk)));
      int state = Z_OK;
      char const* const reason = gzerror(handle_, &state);
      if (state == Z_BUF_ERROR) {
        damaged(ddp::text("the gzip stream ends early, after ",
                          read_ + done + static_cast<std::size_t>(std::max(got, 0)),
                          " bytes of content: the file is truncated"));
      }
      if (got < 0 && state == Z_ERRNO) {
        throw InputError(InputError::Kind::missing,
                         ddp::text(path_.string(), ": cannot be read: ", std::strerror(errno)));
      }
      if (got < 0) damaged(ddp::text("the gzip stream is damaged: ", reason));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    read_ += done;
    return done;
  }

  [[noreturn]] void damaged(std::string const& what) const {
    throw InputError(InputError::Kind::damaged, path_.string() + ": " + what);
  }

 private:
  std::filesystem::path path_;
  gzFile handle_ = nullptr;
  std::size_t read_ = 0;
};

std::uint32_t read_word(File& file, char const* what) {
  std::array<std::uint8_t, 4> bytes{};
  std::size_t const got = file.read(bytes.data(), bytes.size());
  if (got < bytes.size()) {
    file.damaged(ddp::text("expected 4 bytes of ", what, ", found ", got, ": the header is cut off"));
  }
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 |
         bytes[3];
}

}  // namespace

Idx read_idx(std::filesystem::path const& path, std::size_t dimensions) {
  File file(path);
  auto const expected_magic = 0x0800U | static_cast<std::uint32_t>(dimensions);
  std::uint32_t const magic = read_word(file, "magic number");
  if (magic != expected_magic) {
    file.damaged(ddp::text("expected magic number ", hex(expected_magic),
                           " (unsigned bytes, dimensions: ", dimensions, "), found ", hex(magic)));
  }
  Idx idx;
  std::size_t size = 1;
  for (std::size_t axis = 0; axis < dimensions; ++axis) {
    idx.extents.push_back(read_word(file, "extents"));
    if (idx.extents.back() != 0 && size > kMaxBytes / idx.extents.back()) {
      file.damaged(
          ddp::text("the header claims more than ", kMaxBytes, " elements: ", ddp::join(idx.extents, " x ")));
    }
    size *= idx.extents.back();
  }
  while (idx.values.size() < size) {
    std::size_t const before = idx.values.size();
    std::size_t const wanted = std::min(size - before, kChunk);
    if (idx.values.capacity() < before + wanted) idx.values.reserve(std::min(size, 2 * (before + wanted)));
    idx.values.resize(before + wanted);
    std::size_t const got = file.read(idx.values.data() + before, wanted);
    if (got < wanted) {
      file.damaged(ddp::text("expected ", size, " elements (", ddp::join(idx.extents, " x "), "), found ",
                             before + got, ": the file is cut off"));
    }
  }
  std::uint8_t more = 0;
  if (file.read(&more, 1) != 0) {
    file.damaged(ddp::text("expected ", size, " elements (", ddp::join(idx.extents, " x "),
                           "), found more data behind them"));
  }
  return idx;
}

}  // namespace data

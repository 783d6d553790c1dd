#include "core/system/build_id.hpp"

#include <link.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/round_up.hpp"

namespace ddp {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

bool holds_this_library(dl_phdr_info const& file) {
  auto const here = reinterpret_cast<std::uintptr_t>(&build_id);
  for (int i = 0; i < file.dlpi_phnum; ++i) {
    auto const& segment = file.dlpi_phdr[i];
    std::uintptr_t const begin = file.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && here >= begin && here - begin < segment.p_memsz) return true;
  }
  return false;
}

// A note is a header, a name ("GNU") and its value, each padded to 4 bytes.
void append_id(dl_phdr_info const& file, std::string& digits) {
  for (int i = 0; i < file.dlpi_phnum; ++i) {
    auto const& segment = file.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    auto const* const notes = reinterpret_cast<unsigned char const*>(file.dlpi_addr + segment.p_vaddr);
    ElfW(Nhdr) note{};
    for (std::size_t at = 0; at + sizeof note <= segment.p_memsz;) {
      std::memcpy(&note, notes + at, sizeof note);
      auto const* const name = notes + at + sizeof note;
      auto const* const value = name + round_up(note.n_namesz, 4);
      at += sizeof note + round_up(note.n_namesz, 4) + round_up(note.n_descsz, 4);
      if (at > segment.p_memsz) break;
      if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0) continue;
      for (std::size_t byte = 0; byte < note.n_descsz; ++byte) {
        digits += kDigits[value[byte] >> 4U];
        digits += kDigits[value[byte] & 0xfU];
      }
      return;
    }
  }
}

struct Search {
  std::string digits;
  bool is_first = true;  // the program
};

int look_at(dl_phdr_info* file, std::size_t /*size*/, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (search.is_first || holds_this_library(*file)) append_id(*file, search.digits);
  search.is_first = false;
  return 0;
}

}  // namespace

std::string library_version() { return DDP_VERSION; }

std::string build_id() {
  Search search;
  dl_iterate_phdr(&look_at, &search);
  return search.digits.empty() ? "-" : search.digits;
}

}  // namespace ddp

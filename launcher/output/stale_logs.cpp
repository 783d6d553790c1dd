#include "launcher/output/stale_logs.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <string>
#include <string_view>

#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"
#include "observe/flight_json.hpp"

namespace ddp::launcher {
namespace {

bool is_stale(std::string const& name, int ranks, bool by_mpirun) {
  if (name == "mpirun.out" || name == "mpirun.err") return !by_mpirun;
  constexpr std::string_view kRank = "rank";
  int number = -1;
  if (!name.starts_with(kRank)) return false;
  auto const [end, problem] = std::from_chars(name.data() + kRank.size(), name.data() + name.size(), number);
  if (problem != std::errc{} || number < 0) return false;
  Rank const rank{number};
  if (name == flight_file_name(rank)) return true;
  return number >= ranks && (name == text("rank", rank, ".out") || name == text("rank", rank, ".err"));
}

}  // namespace

void remove_stale_logs(int folder, int ranks, bool by_mpirun) {
  int const again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::unique_ptr<DIR, int (*)(DIR*)> const entries(again < 0 ? nullptr : fdopendir(again), &closedir);
  if (!entries) return;
  while (dirent const* entry = readdir(entries.get())) {
    struct stat status {};
    bool const ours = is_stale(entry->d_name, ranks, by_mpirun) &&
                      fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                      S_ISREG(status.st_mode) && status.st_uid == geteuid();
    if (ours) unlinkat(folder, entry->d_name, 0);
  }
}

}  // namespace ddp::launcher

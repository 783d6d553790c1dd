#include "core/system/cgroup.hpp"

#include <sys/stat.h>

#include <charconv>
#include <cstddef>
#include <fstream>
#include <optional>
#include <string>

#include "ddp/core/text.hpp"

namespace ddp {
namespace {

namespace fs = std::filesystem;

/// What is mounted in `mount`, from the cgroup `path` ("/user.slice/a") outwards.
void add_outwards(std::vector<fs::path>& folders, fs::path const& mount, fs::path const& path) {
  fs::path inner = path.relative_path().lexically_normal();
  if (inner.begin() != inner.end() && *inner.begin() == "..") inner.clear();  // outside of what is seen here
  for (;; inner = inner.parent_path()) {
    folders.push_back(inner.empty() ? mount : mount / inner);
    if (inner.empty()) return;
  }
}

/// The numbers at the file's beginning, up to a word that is no number ("max").
std::vector<double> numbers_in(fs::path const& path) {
  Classic<std::ifstream> file(path);
  std::vector<double> numbers;
  for (std::string word; file >> word;) {
    double number = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), number).ec != std::errc{}) break;
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

std::vector<fs::path> cgroup_folders(std::string_view controller, fs::path const& root) {
  std::optional<fs::path> own_hierarchy;
  fs::path common = "/";
  Classic<std::ifstream> in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "number:controllers:path"; version 2 names none
    std::size_t const first = line.find(':');
    std::size_t const second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string const controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) common = line.substr(second + 1);
    if (text(",", controllers, ",").find(text(",", controller, ",")) != std::string::npos) {
      own_hierarchy = line.substr(second + 1);
    }
  }
  fs::path const mount = root / "sys/fs/cgroup";
  std::vector<fs::path> folders;
  if (own_hierarchy) add_outwards(folders, mount / controller, *own_hierarchy);
  add_outwards(folders, mount, common);
  return folders;
}

std::vector<CpuQuota> cpu_quotas(fs::path const& root) {
  std::vector<CpuQuota> quotas;
  for (fs::path const& folder : cgroup_folders("cpu", root)) {
    auto numbers = numbers_in(folder / "cpu.max");  // "200000 100000", "max 100000"
    if (numbers.empty()) {
      numbers = numbers_in(folder / "cpu.cfs_quota_us");  // -1: none
      auto const period = numbers_in(folder / "cpu.cfs_period_us");
      numbers.insert(numbers.end(), period.begin(), period.end());
    }
    struct stat status {};
    bool const limited = numbers.size() == 2 && numbers[0] > 0 && numbers[1] > 0;
    if (limited && ::stat(folder.c_str(), &status) == 0) {
      quotas.push_back({status.st_ino, numbers[0] / numbers[1]});
    }
  }
  return quotas;
}

}  // namespace ddp

#include "comm/group/core_shares.hpp"

#include <sys/stat.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "core/system/allowed_cpus.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// The path of the cgroup of version 2 in a /proc/PID/cgroup: "0::/user.slice". Empty for the outermost.
std::string own_group(std::string const& membership) {
  Classic<std::istringstream> lines(membership);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("0::/") && line != "0::/") return line.substr(3);
  }
  return "";
}

// Gives each rank a CPU of its own, as far as that is possible: a matching along augmenting paths.
class Matching {
 public:
  explicit Matching(std::span<CoreShare const> ranks) : ranks_(ranks) {}

  /// False if `rank` can have none, even if others move. Then all that were asked to move, asked(), share too
  /// few CPUs, whichever ranks follow.
  [[nodiscard]] bool place(std::size_t rank) {
    asked_.assign(ranks_.size(), false);
    return find_place(rank);
  }
  [[nodiscard]] std::vector<bool> const& asked() const noexcept { return asked_; }

 private:
  bool find_place(std::size_t rank) {
    asked_[rank] = true;
    for (int const cpu : ranks_[rank].cpus) {
      if (users_.try_emplace(cpu, rank).second) return true;
    }
    for (int const cpu : ranks_[rank].cpus) {
      std::size_t const other = users_[cpu];
      if (asked_[other] || !find_place(other)) continue;
      users_[cpu] = rank;
      return true;
    }
    return false;
  }

  std::span<CoreShare const> ranks_;
  std::map<int, std::size_t> users_;  // the rank that has a CPU for itself
  std::vector<bool> asked_;
};

}  // namespace

CoreShare core_share() {
  Classic<std::ifstream> file("/proc/self/cgroup");
  std::string const membership{std::istreambuf_iterator<char>(file), {}};
  return {allowed_cpu_numbers(), read_quotas(membership, "/sys/fs/cgroup")};
}

std::vector<CoreShare::Quota> read_quotas(std::string const& membership, std::string const& root) {
  std::vector<CoreShare::Quota> quotas;
  for (std::string folder = root + own_group(membership);; folder.resize(folder.rfind('/'))) {
    struct stat status {};
    double time = 0;
    double period = 0;
    // "200000 100000", or "max 100000", which is no number.
    if (Classic<std::ifstream> file(folder + "/cpu.max");
        file >> time >> period && period > 0 && ::stat(folder.c_str(), &status) == 0) {
      quotas.push_back({status.st_ino, time / period});
    }
    if (folder.size() <= root.size()) return quotas;
  }
}

std::vector<bool> have_own_cores(std::span<CoreShare const> ranks) {
  std::vector<bool> own(ranks.size(), true);
  Matching matching(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (matching.place(rank)) continue;
    for (std::size_t r = 0; r < ranks.size(); ++r) own[r] = own[r] && !matching.asked()[r];
  }
  std::map<std::uint64_t, std::vector<std::size_t>> members;  // of each group with a quota
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (CoreShare::Quota const& quota : ranks[rank].quotas) members[quota.group].push_back(rank);
  }
  for (CoreShare const& rank : ranks) {
    for (CoreShare::Quota const& quota : rank.quotas) {
      auto const& together = members[quota.group];
      if (quota.cpus >= static_cast<double>(together.size())) continue;
      for (std::size_t const member : together) own[member] = false;
    }
  }
  return own;
}

}  // namespace ddp

#include "support/launcher/job_processes.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;

// What can be read: a file of /proc may go, or fail, while its process ends.
std::string read_file(std::filesystem::path const& path) {
  std::ostringstream content;
  std::ifstream in(path, std::ios::binary);
  content << in.rdbuf();  // keeps the exceptions of the file buffer to itself
  return std::move(content).str();
}

bool has(std::string const& environment, std::string const& variable) {
  std::string const end(1, '\0');
  return (end + environment).find(end + variable + end) != std::string::npos;
}

}  // namespace

std::vector<JobProcess> processes_with(std::vector<std::string> const& variables) {
  std::vector<JobProcess> found;
  std::error_code ignored;
  for (auto const& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    std::string const name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::string const environment = read_file(entry.path() / "environ");
    if (!std::ranges::all_of(variables, [&](auto const& each) { return has(environment, each); })) continue;
    std::string const stat = read_file(entry.path() / "stat");
    std::istringstream rest(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    char state = 'X';
    pid_t parent = 0;
    rest >> state >> parent;
    if (state == 'Z' || state == 'X') continue;
    found.push_back({std::stoi(name), parent, read_file(entry.path() / "comm"), state});
  }
  return found;
}

bool gone_within(milliseconds timeout, std::vector<std::string> const& variables) {
  Deadline const deadline = Deadline::after(timeout);
  while (!processes_with(variables).empty()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

std::set<std::string> shared_memory_of(std::vector<JobProcess> const& processes) {
  std::set<std::string> files;
  for (JobProcess const& process : processes) {
    std::ifstream maps(text("/proc/", process.pid, "/maps"));
    for (std::string line; std::getline(maps, line);) {
      std::size_t const at = line.find("/dev/shm/");
      if (at != std::string::npos) files.insert(line.substr(at));
    }
  }
  return files;
}

std::set<std::string> listening_addresses(std::vector<JobProcess> const& processes) {
  std::map<std::string, std::string> address_of;  // by what a descriptor's link says
  for (char const* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::vector<std::string> words(std::istream_iterator<std::string>(fields), {});
      if (words.size() < 10 || words[3] != "0A") continue;  // listening
      address_of[text("socket:[", words[9], "]")] = words[1].substr(0, words[1].find(':'));
    }
  }
  std::set<std::string> addresses;
  for (JobProcess const& process : processes) {
    std::error_code ignored;
    for (auto const& entry :
         std::filesystem::directory_iterator(text("/proc/", process.pid, "/fd"), ignored)) {
      auto const found = address_of.find(std::filesystem::read_symlink(entry.path(), ignored).string());
      if (found != address_of.end()) addresses.insert(found->second);
    }
  }
  return addresses;
}

}  // namespace ddp::testing

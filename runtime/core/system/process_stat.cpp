#include "core/system/process_stat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string_view>
#include <utility>

#include "core/system/file_descriptor.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

std::string process_stat(pid_t pid) {
  FileDescriptor const file(::open(text("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> buffer{};
  ssize_t const length = file ? ::read(file.get(), buffer.data(), buffer.size()) : -1;
  if (length <= 0) return {};
  std::string_view const line(buffer.data(), static_cast<std::size_t>(length));
  std::size_t const name_end = line.rfind(") ");  // the name may hold spaces and parentheses
  return name_end == std::string_view::npos ? std::string() : std::string(line.substr(name_end + 2));
}

std::string how_stopped(pid_t pid) {
  std::string const fields = process_stat(pid);
  if (fields.starts_with('T')) return "by a signal (SIGSTOP, Ctrl-Z)";
  return fields.starts_with('t') ? "by a debugger" : "";
}

std::string describe_stopped(Rank rank, pid_t pid) {
  std::string const how = how_stopped(pid);
  if (how.empty()) return {};
  return text("; rank ", rank, " (process ", pid, ") is stopped ", how, ": kill -CONT ", pid,
              " lets it go on");
}

void note_stopped(Failure& failure, Rank rank, pid_t pid) {
  std::string const words = describe_stopped(rank, pid);
  if (words.empty()) return;
  failure.detail += words;
  if (std::exchange(failure.manner, Failure::Manner::stopped) == Failure::Manner::stopped) return;
  std::erase(failure.ranks, rank);
  failure.ranks.insert(failure.ranks.begin(), rank);
}

}  // namespace ddp

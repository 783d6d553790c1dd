#include "launcher/process/process_tree.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "core/parse_number.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/guard.hpp"

namespace ddp::launcher {
namespace {

/// Every process that this one can see.
std::vector<pid_t> all_processes() {
  std::vector<pid_t> processes;
  std::unique_ptr<DIR, int (*)(DIR*)> const directory(opendir("/proc"), &closedir);
  if (!directory) return processes;
  while (dirent const* entry = readdir(directory.get())) {
    if (auto const pid = parse_number<pid_t>(entry->d_name)) processes.push_back(*pid);
  }
  return processes;
}

}  // namespace

ProcessEntry read_process(pid_t pid) {
  std::string const fields = process_stat(pid);  // state parent group session …
  Classic<std::istringstream> in(fields);
  char state = '?';
  int parent = -1;
  int group = -1;
  int session = -1;
  if (!(in >> state >> parent >> group >> session)) return {};
  return {pid, parent, group, session, state == 'Z' || state == 'X'};
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  Classic<std::ifstream> list(text("/proc/self/task/", getpid(), "/children"));
  if (list) {
    for (pid_t pid = 0; list >> pid;) children.push_back(pid);
    return children;
  }
  children = all_processes();  // a kernel without CONFIG_PROC_CHILDREN
  std::erase_if(children, [](pid_t pid) { return read_process(pid).parent != getpid(); });
  return children;
}

void end_processes(std::function<std::vector<pid_t>()> const& list,
                   std::function<bool(ProcessEntry const&)> const& is_meant) {
  for (Deadline const deadline = Deadline::after(kTimeToEnd);;) {
    bool someone_lives = false;
    for (pid_t const pid : list()) {
      ProcessEntry const process = read_process(pid);
      if (process.pid < 0 || process.zombie || !is_meant(process)) continue;
      bool const cleans_up = deadline.remaining() > kTimeToEnd / 2 &&
                             first_line_of_file(text("/proc/", pid, "/comm")) == kGuardName;
      if (!cleans_up) kill(pid, SIGKILL);
      someone_lives = true;
    }
    if (!someone_lives || deadline.expired()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void end_sessions(std::span<pid_t const> sessions) {
  auto const list = [&] {  // a group at once, since its processes may make others meanwhile
    for (pid_t const session : sessions) kill(-session, SIGKILL);
    return all_processes();
  };
  end_processes(list, [&](ProcessEntry const& process) {
    return std::ranges::find(sessions, process.session) != sessions.end();
  });
}

}  // namespace ddp::launcher

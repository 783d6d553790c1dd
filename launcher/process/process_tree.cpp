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
#include "ddp/core/text.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/guard.hpp"

namespace ddp::launcher {
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

std::vector<ProcessEntry> all_processes() {
  std::vector<ProcessEntry> processes;
  std::unique_ptr<DIR, int (*)(DIR*)> const directory(opendir("/proc"), &closedir);
  if (!directory) return processes;
  while (dirent const* entry = readdir(directory.get())) {
    auto const pid = parse_number<pid_t>(entry->d_name);
    if (!pid) continue;
    if (ProcessEntry const process = read_process(*pid); process.pid > 0) processes.push_back(process);
  }
  return processes;
}

std::vector<pid_t> children_of_this_process() {
  std::vector<pid_t> children;
  Classic<std::ifstream> list(text("/proc/self/task/", getpid(), "/children"));
  if (list) {
    for (pid_t pid = 0; list >> pid;) children.push_back(pid);
    return children;
  }
  for (ProcessEntry const& process : all_processes()) {  // a kernel without CONFIG_PROC_CHILDREN
    if (process.parent == getpid()) children.push_back(process.pid);
  }
  return children;
}

bool is_cleaning_up(pid_t pid, Deadline deadline) {
  return deadline.remaining() > deadline.allowed() / 2 &&
         first_line_of_file(text("/proc/", pid, "/comm")) == kGuardName;
}

void end_sessions(std::span<pid_t const> sessions, Deadline deadline) {
  for (;;) {
    for (pid_t const session : sessions) kill(-session, SIGKILL);
    bool someone_lives = false;
    for (ProcessEntry const& process : all_processes()) {
      bool const ours = std::find(sessions.begin(), sessions.end(), process.session) != sessions.end();
      if (!ours || process.zombie) continue;
      if (!is_cleaning_up(process.pid, deadline)) kill(process.pid, SIGKILL);
      someone_lives = true;
    }
    if (!someone_lives || deadline.expired()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace ddp::launcher

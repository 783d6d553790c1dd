#include "support/launcher/launched_job.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <sstream>
#include <thread>

#include "core/system/pidfd.hpp"
#include "core/system/process_stat.hpp"
#include "ddp/core/deadline.hpp"

namespace ddp::testing {
namespace {

using std::chrono::milliseconds;

std::array<FileDescriptor, 2> make_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) ADD_FAILURE() << "pipe2";
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void read_into(std::string& text, FileDescriptor& pipe) {
  std::array<char, 65536> buffer{};
  ssize_t const count = read(pipe.get(), buffer.data(), buffer.size());
  if (count > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  } else {
    pipe.reset();
  }
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

void lead_session(int terminal) {
  if (setsid() < 0 || (terminal >= 0 && ioctl(terminal, TIOCSCTTY, 0) != 0)) _exit(97);
}

/// In the child, which becomes the shell of a session on the terminal. Returns in its only job, whose exit
/// status the shell passes on.
void return_below_a_shell(int terminal, int to_test) {
  lead_session(terminal);
  pid_t const job = fork();
  if (job == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    return;
  }
  [[maybe_unused]] auto const told = write(to_test, &job, sizeof job);
  close_range(STDERR_FILENO + 1, ~0U, 0);
  int status = 0;
  if (waitpid(job, &status, 0) != job) _exit(95);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/// In the child: a process group of its own, as a shell gives each job. The kernel takes it for one that can
/// be continued, since its parent is of another group in the same session.
void lead_group(int terminal, bool foreground) {
  if (setpgid(0, 0) != 0) _exit(96);
  if (terminal < 0 || !foreground) return;
  sigset_t output;  // from the background this is output, which SIGTTOU would keep from the terminal
  sigemptyset(&output);
  sigaddset(&output, SIGTTOU);
  sigprocmask(SIG_BLOCK, &output, nullptr);
  if (tcsetpgrp(terminal, getpid()) != 0) _exit(96);
}

}  // namespace

LaunchedJob::LaunchedJob(std::vector<std::string> const& arguments, Settings const& settings) {
  std::string pattern = (std::filesystem::temp_directory_path() / "ddp-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << pattern;
  root_ = pattern;
  directory_ = settings.read_only_directory ? std::filesystem::path("/proc") : root_ / "work";
  std::filesystem::create_directory(root_ / "work");
  std::filesystem::create_directory(root_ / "tmp");
  mark_ = "DDP_TEST_JOB=" + root_.string();

  if (settings.prepare) settings.prepare(directory_);

  std::vector<std::string> words{DDP_LAUNCH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = settings.environment;
  environment.push_back(mark_);
  bool const chosen_place = std::any_of(environment.begin(), environment.end(),
                                        [](std::string const& each) { return each.starts_with("TMPDIR="); });
  if (!chosen_place) environment.push_back("TMPDIR=" + temporary_directory().string());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string const name = std::string(*entry).substr(0, std::string(*entry).find('=') + 1);
    bool const given = std::any_of(environment.begin(), environment.end(),
                                   [&](std::string const& each) { return each.starts_with(name); });
    static constexpr std::array kChosenByTests{
        "OMP_NUM_THREADS=", "CUDA_VISIBLE_DEVICES=", "NCCL_SOCKET_IFNAME=", "NCCL_RAS_ENABLE=",
        "PYTHONUNBUFFERED="};
    bool const chosen = std::find(kChosenByTests.begin(), kChosenByTests.end(), name) != kChosenByTests.end();
    if (!given && !chosen) environment.emplace_back(*entry);
  }
  auto const argv = pointers(words);
  auto const envp = pointers(environment);

  auto in = make_pipe();
  auto out = make_pipe();
  auto err = make_pipe();
  if (!settings.read_output) {
    fcntl(out[1].get(), F_SETFL, O_NONBLOCK);
    std::array<char, 4096> const filling{};
    while (write(out[1].get(), filling.data(), filling.size()) > 0) {
    }
    fcntl(out[1].get(), F_SETFL, 0);
  }
  bool const below_a_shell = settings.shell && settings.terminal >= 0;
  auto from_shell = make_pipe();
  pid_ = child_ = fork();
  if (child_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (below_a_shell) return_below_a_shell(settings.terminal, from_shell[1].get());
    settings.shell ? lead_group(settings.terminal, settings.foreground) : lead_session(settings.terminal);
    for (int const signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) std::signal(signal, SIG_DFL);
    for (int const signal : settings.ignored_signals) std::signal(signal, SIG_IGN);
    sigset_t blocked;
    sigemptyset(&blocked);
    for (int const signal : settings.blocked_signals) sigaddset(&blocked, signal);
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    if (chdir(directory_.c_str()) != 0) _exit(99);
    dup2(settings.terminal >= 0 ? settings.terminal : in[0].get(), STDIN_FILENO);
    dup2(settings.out.empty() ? out[1].get() : open(settings.out.c_str(), O_WRONLY), STDOUT_FILENO);
    dup2(err[1].get(), STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0U, 0);  // what the test itself inherited
    execve(DDP_LAUNCH, argv.data(), envp.data());
    _exit(98);
  }
  from_shell[1].reset();
  if (below_a_shell && read(from_shell[0].get(), &pid_, sizeof pid_) != static_cast<ssize_t>(sizeof pid_)) {
    ADD_FAILURE() << "no session on the terminal";
  }
  pidfd_ = open_pidfd(pid_);
  child_pidfd_ = open_pidfd(child_);
  (settings.read_output ? out_pipe_ : unread_pipe_) = std::move(out[0]);
  if (settings.reader_leaves) out_pipe_.reset();
  err_pipe_ = std::move(err[0]);
  [[maybe_unused]] auto const fed = write(in[1].get(), settings.input.data(), settings.input.size());
}

LaunchedJob::~LaunchedJob() {
  if (!ended_) {
    ADD_FAILURE() << "the test ended before its job: call exit_code()";
    send(SIGKILL);
    exit_code(std::chrono::seconds(10));
  }
  if (!all_gone_within(milliseconds(2500))) {
    for (JobProcess const& process : processes()) {
      ADD_FAILURE() << "left behind: process " << process.pid << " (" << process.name << ")";
      kill(process.pid, SIGKILL);
    }
  }
  for (auto const& entry : std::filesystem::directory_iterator(temporary_directory())) {
    ADD_FAILURE() << "left behind: " << entry.path();
  }
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

/// Reads what comes until something came or ddp-launch ended. False after `timeout`.
bool LaunchedJob::pump(milliseconds timeout) {
  std::array<pollfd, 3> waiting{
      {{out_pipe_.get(), POLLIN, 0}, {err_pipe_.get(), POLLIN, 0}, {child_pidfd_.get(), POLLIN, 0}}};
  bool const streams_open = out_pipe_ || err_pipe_;
  if (poll(waiting.data(), streams_open ? 2 : 3, static_cast<int>(timeout.count())) <= 0) return false;
  if (waiting[0].revents != 0) read_into(out_, out_pipe_);
  if (waiting[1].revents != 0) read_into(err_, err_pipe_);
  if (streams_open) return true;
  int status = 0;
  rusage usage{};
  if (wait4(child_, &status, 0, &usage) != child_) ADD_FAILURE() << "wait4";
  ended_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  peak_kilobytes_ = usage.ru_maxrss;
  return true;
}

int LaunchedJob::exit_code(milliseconds timeout) {
  Deadline const deadline = Deadline::after(timeout);
  while (!ended_) {
    if (pump(deadline.remaining())) continue;
    ADD_FAILURE() << "ddp-launch did not end within " << seconds(timeout) << " s\nstdout: " << out_
                  << "\nstderr: " << err_;
    send(SIGKILL);
    waitpid(child_, nullptr, 0);
    ended_ = true;
  }
  return exit_code_;
}

bool LaunchedJob::shows(std::string const& text, milliseconds timeout) {
  Deadline const deadline = Deadline::after(timeout);
  while ((out_ + err_).find(text) == std::string::npos) {
    if (!ended_ && pump(deadline.remaining())) continue;
    ADD_FAILURE() << "not shown: " << text << "\nstdout: " << out_ << "\nstderr: " << err_;
    return false;
  }
  return true;
}

void LaunchedJob::send(int signal) const { syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0); }

bool LaunchedJob::stops(milliseconds timeout) const {
  Deadline const deadline = Deadline::after(timeout);
  while (how_stopped(pid_).empty()) {
    if (deadline.expired()) {
      ADD_FAILURE() << "ddp-launch goes on";
      return false;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

std::vector<std::string> LaunchedJob::sorted_lines() const {
  std::vector<std::string> lines;
  std::istringstream in(out_);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<JobProcess> LaunchedJob::processes() const { return processes_with({mark_}); }

bool LaunchedJob::all_gone_within(milliseconds timeout) const { return gone_within(timeout, {mark_}); }

void send_to_rank(LaunchedJob const& job, std::string const& program, std::size_t index, int signal) {
  std::vector<pid_t> ranks;
  for (JobProcess const& process : job.processes()) {
    if (process.name.starts_with(program)) ranks.push_back(process.pid);
  }
  std::sort(ranks.begin(), ranks.end());
  ASSERT_LT(index, ranks.size()) << "the job was too short for this test";
  ASSERT_GT(ranks[index], 1) << "-1 would be everybody";
  ::kill(ranks[index], signal);
}

std::vector<std::string> shell_ranks(int ranks, std::string const& script,
                                     std::vector<std::string> const& options) {
  std::vector<std::string> words{"--cpus", std::to_string(ranks), "--no-log-files"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "/bin/sh", "-c", script});
  return words;
}

std::vector<std::string> program_ranks(int ranks, std::vector<std::string> const& arguments,
                                       std::vector<std::string> const& options) {
  std::vector<std::string> words{"--cpus", std::to_string(ranks)};
  words.insert(words.end(), options.begin(), options.end());
  return launched_rank_with(words, arguments);
}

std::vector<std::string> launched_rank_with(std::vector<std::string> const& options,
                                            std::vector<std::string> const& arguments) {
  std::vector<std::string> words = options;
  words.insert(words.end(), {"--no-log-files", "--", LAUNCHED_RANK});
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

}  // namespace ddp::testing

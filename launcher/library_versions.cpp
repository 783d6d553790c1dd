#include "launcher/library_versions.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <string_view>

#include "core/file_descriptor.hpp"
#include "ddp/core/text.hpp"
#include "device/version_text.hpp"
#include "launcher/exit_code.hpp"
#include "launcher/outcome.hpp"

namespace ddp::launcher {
namespace {

using Clock = std::chrono::steady_clock;

struct Answer {
  std::string words;
  int status = 0;  ///< as waitpid() gives it
  bool late = false;
};

/// What the child wrote until it closed its end. Reads 64 KiB at most.
bool read_until(int fd, Clock::time_point deadline, std::string& words) {
  constexpr std::size_t kMost = std::size_t{64} << 10;
  std::array<char, 4096> buffer{};
  while (words.size() < kMost) {
    auto const left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{fd, POLLIN, 0};
    int const ready = left <= 0 ? 0 : poll(&waiting, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    ssize_t const got = read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    words.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return true;
}

bool ends_before(pid_t child, Clock::time_point deadline) {
  FileDescriptor const pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));  // close-on-exec by itself
  if (!pidfd) return false;  // a kernel that has none: whatever it still does, it has answered
  for (;;) {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{pidfd.get(), POLLIN, 0};
    int const ready = poll(&waiting, 1, static_cast<int>(std::max<decltype(left)>(left, 0)));
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return false;
  }
}

/// Runs `work` in a child whose stdin, stdout and stderr lead nowhere; it writes its answer to the
/// descriptor. The child has gone when this returns, killed if it did not answer in time.
Answer ask_child(std::function<void(int)> const& work, std::chrono::milliseconds patience) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw ExitError(exit_code::kRetry, text("cannot ask for versions: pipe: ", std::strerror(errno)));
  }
  FileDescriptor const reading(ends[0]);
  FileDescriptor writing(ends[1]);
  pid_t const parent = getpid();
  pid_t const child = fork();
  if (child < 0) {
    throw ExitError(exit_code::kRetry, text("cannot ask for versions: fork: ", std::strerror(errno)));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);
    int const nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int const fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, fd);
    work(writing.get());
    _exit(0);
  }
  setpgid(child, child);  // here too: whoever comes first
  writing.reset();
  Clock::time_point const deadline = Clock::now() + patience;
  Answer answer;
  answer.late = !read_until(reading.get(), deadline, answer.words) || !ends_before(child, deadline);
  if (answer.late) kill(-child, SIGKILL);
  while (waitpid(child, &answer.status, 0) < 0 && errno == EINTR) {
  }
  return answer;
}

std::string why_no_answer(Answer const& answer, std::chrono::milliseconds patience) {
  if (answer.late) return text("no answer within ", patience.count(), " ms");
  if (WIFSIGNALED(answer.status)) {
    int const signal = WTERMSIG(answer.status);
    return text("crashed with signal ", signal, " (", signal_name(signal), ")");
  }
  return text("ended with exit code ", WEXITSTATUS(answer.status), " and no version");
}

std::string first_line(std::string const& words) { return words.substr(0, words.find('\n')); }

constexpr char kGood = '+';  ///< stands before the path and the version, each with a line end
constexpr char kBad = '-';   ///< stands before the reason

void say(int fd, std::string const& words) {
  [[maybe_unused]] auto const written = write(fd, words.data(), words.size());
}

/// Asks the first of `files` that can be loaded: `version_of` gets what loading gave.
LibraryVersion version_in_child(std::span<std::string const> files, char const* function,
                                std::function<std::string(void*)> const& version_of,
                                std::chrono::milliseconds patience) {
  Answer const answer = ask_child(
      [&](int fd) {
        std::string problem = "no library to look for";
        for (std::string const& file : files) {
          void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
          void* const found = library == nullptr ? nullptr : dlsym(library, function);
          if (found != nullptr) {
            Dl_info place{};
            bool const known = dladdr(found, &place) != 0 && place.dli_fname != nullptr;
            return say(fd,
                       text(kGood, known ? place.dli_fname : file.c_str(), "\n", version_of(found), "\n"));
          }
          char const* const why = dlerror();
          if (&file == &files.front()) problem = why == nullptr ? file : why;
        }
        say(fd, kBad + problem);
      },
      patience);
  if (answer.words.starts_with(kBad)) return {{}, {}, first_line(answer.words.substr(1))};
  std::size_t const end = answer.words.find('\n');
  if (!answer.words.starts_with(kGood) || end == std::string::npos)
    return {{}, {}, why_no_answer(answer, patience)};
  return {first_line(answer.words.substr(end + 1)), answer.words.substr(1, end - 1), {}};
}

}  // namespace

std::string version_number(std::string const& words) {
  auto const digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t begin = 0; begin < words.size(); ++begin) {
    if (!digit(words[begin])) continue;
    std::size_t end = begin;
    while (end < words.size() && (digit(words[end]) || words[end] == '.')) ++end;
    std::string number = words.substr(begin, end - begin);
    while (number.ends_with('.')) number.pop_back();
    if (number.find('.') != std::string::npos) return number;
    begin = end;
  }
  return {};
}

LibraryVersion nccl_version(std::span<std::string const> files, std::chrono::milliseconds patience) {
  return version_in_child(
      files, "ncclGetVersion",
      [](void* function) {
        int code = 0;
        bool const told = reinterpret_cast<int (*)(int*)>(function)(&code) == 0;
        return told ? nccl_version_text(code) : std::string("of unknown version");
      },
      patience);
}

LibraryVersion mpi_version(std::span<std::string const> files, std::chrono::milliseconds patience) {
  return version_in_child(files, "MPI_Get_library_version", mpi_version_text, patience);
}

LibraryVersion program_version(std::string const& program, std::chrono::milliseconds patience) {
  Answer const answer = ask_child(
      [&](int fd) {
        dup2(fd, STDOUT_FILENO);
        execl(program.c_str(), program.c_str(), "--version", nullptr);
        _exit(exec_failure_code(errno));
      },
      patience);
  std::string const line = first_line(answer.words);
  if (answer.late || answer.status != 0 || line.empty())
    return {{}, program, why_no_answer(answer, patience)};
  return {line, program, {}};
}

}  // namespace ddp::launcher

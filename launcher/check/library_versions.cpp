#include "launcher/check/library_versions.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>

#include "core/ascii.hpp"
#include "core/system/signal_name.hpp"
#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

using Answer = ChildQuestion::Answer;

ChildQuestion start(std::function<void(int)> const& work) {
  try {
    return ChildQuestion(work);
  } catch (Error const& error) {
    throw ExitError(exit_code::kRetry, text("cannot ask for versions: ", error.what()));
  }
}

std::string why_no_answer(Answer const& answer, std::chrono::milliseconds timeout) {
  if (answer.late) return text("no answer within ", timeout.count(), " ms");
  if (WIFSIGNALED(answer.status)) {
    int const signal = WTERMSIG(answer.status);
    return text("crashed with signal ", signal, " (", signal_name(signal), ")");
  }
  return text("ended with exit code ", WEXITSTATUS(answer.status), " and no version");
}

constexpr char kGood = '+';  ///< stands before the path and the version, each with a line end
constexpr char kBad = '-';   ///< stands before the reason

void say(int fd, std::string const& words) {
  [[maybe_unused]] auto const written = write(fd, words.data(), words.size());
}

}  // namespace

std::vector<int> version_parts(std::string const& words) {
  std::vector<int> parts;
  char const* const end = words.data() + words.size();
  char const* at = std::find_if(words.data(), end, is_digit);
  for (;;) {
    int number = 0;
    auto const [after, problem] = std::from_chars(at, end, number);
    if (problem != std::errc{} || number < 0) return parts;
    parts.push_back(number);
    if (after == end || *after != '.') return parts;
    at = after + 1;
  }
}

bool is_older(std::string const& one, std::string const& other) {
  auto mine = version_parts(one);
  auto theirs = version_parts(other);
  std::size_t const common = std::min(mine.size(), theirs.size());
  mine.resize(common);
  theirs.resize(common);
  return mine < theirs;
}

LibraryVersion VersionQuestion::answer(std::chrono::milliseconds timeout) {
  Answer const answer = question_.answer(timeout);
  if (answer.words.starts_with(kBad)) return {{}, {}, first_line(answer.words.substr(1))};
  std::size_t const end = answer.words.find('\n');
  if (!answer.words.starts_with(kGood) || end == std::string::npos)
    return {{}, {}, why_no_answer(answer, timeout)};
  return {first_line(answer.words.substr(end + 1)), answer.words.substr(1, end - 1), {}};
}

VersionQuestion ask_version(VersionedLibrary const& library) {
  return VersionQuestion(start([&](int fd) {
    LoadedFunction const found = load_function(library.files, library.function);
    if (found.address == nullptr) return say(fd, kBad + found.problem);
    Dl_info place{};
    bool const known = dladdr(found.address, &place) != 0 && place.dli_fname != nullptr;
    std::string const version = library.version(found.address);
    say(fd, text(kGood, known ? place.dli_fname : "", "\n", version.empty() ? "of unknown version" : version,
                 "\n"));
  }));
}

LibraryVersion program_version(std::string const& program, std::chrono::milliseconds timeout) {
  Answer const answer = start([&](int fd) {
                          dup2(fd, STDOUT_FILENO);
                          execl(program.c_str(), program.c_str(), "--version", nullptr);
                          _exit(exec_failure_code(errno));
                        }).answer(timeout);
  std::string const line = first_line(answer.words);
  if (answer.late || answer.status != 0 || line.empty()) return {{}, program, why_no_answer(answer, timeout)};
  return {line, program, {}};
}

}  // namespace ddp::launcher

#include "launcher/check/library_versions.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <functional>
#include <string_view>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "device/info/version_text.hpp"
#include "launcher/plan/first_line.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/report/outcome.hpp"

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

std::string why_no_answer(Answer const& answer, std::chrono::milliseconds patience) {
  if (answer.late) return text("no answer within ", patience.count(), " ms");
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

/// Asks the first of `files` that can be loaded: `version_of` gets what its `function` is.
ChildQuestion ask(std::span<std::string const> files, char const* function,
                  std::function<std::string(void*)> const& version_of) {
  return start([&](int fd) {
    std::string problem = "no library to look for";
    for (std::string const& file : files) {
      void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      void* const found = library == nullptr ? nullptr : dlsym(library, function);
      if (found != nullptr) {
        Dl_info place{};
        bool const known = dladdr(found, &place) != 0 && place.dli_fname != nullptr;
        return say(fd, text(kGood, known ? place.dli_fname : file.c_str(), "\n", version_of(found), "\n"));
      }
      char const* const why = dlerror();
      if (&file == &files.front()) problem = why == nullptr ? file : why;
    }
    say(fd, kBad + problem);
  });
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

LibraryVersion VersionQuestion::answer(std::chrono::milliseconds patience) {
  Answer const answer = question_.answer(patience);
  if (answer.words.starts_with(kBad)) return {{}, {}, first_line(answer.words.substr(1))};
  std::size_t const end = answer.words.find('\n');
  if (!answer.words.starts_with(kGood) || end == std::string::npos)
    return {{}, {}, why_no_answer(answer, patience)};
  return {first_line(answer.words.substr(end + 1)), answer.words.substr(1, end - 1), {}};
}

VersionQuestion ask_nccl(std::span<std::string const> files) {
  return VersionQuestion(ask(files, "ncclGetVersion", [](void* function) {
    int code = 0;
    bool const told = reinterpret_cast<int (*)(int*)>(function)(&code) == 0;
    return told ? nccl_version_text(code) : std::string("of unknown version");
  }));
}

VersionQuestion ask_mpi(std::span<std::string const> files) {
  return VersionQuestion(ask(files, "MPI_Get_library_version", mpi_version_text));
}

VersionQuestion ask_cudnn(std::span<std::string const> files) {
  return VersionQuestion(ask(files, "cudnnGetVersion", [](void* function) {
    return cudnn_version_text(reinterpret_cast<std::size_t (*)()>(function)());
  }));
}

LibraryVersion program_version(std::string const& program, std::chrono::milliseconds patience) {
  Answer const answer = start([&](int fd) {
                          dup2(fd, STDOUT_FILENO);
                          execl(program.c_str(), program.c_str(), "--version", nullptr);
                          _exit(exec_failure_code(errno));
                        }).answer(patience);
  std::string const line = first_line(answer.words);
  if (answer.late || answer.status != 0 || line.empty())
    return {{}, program, why_no_answer(answer, patience)};
  return {line, program, {}};
}

}  // namespace ddp::launcher

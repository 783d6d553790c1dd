#include "launcher/options/hosts.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "core/ascii.hpp"
#include "core/system/file_descriptor.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/text.hpp"
#include "device/registry/gpu_id.hpp"
#include "launcher/options/options.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMost = (1_MiB).value;

[[noreturn]] void refuse_hosts(std::string const& message) { throw ExitError(exit_code::kUsage, message); }

/// Why this cannot be a host's name; empty if it can. mpirun gets "name:slots,…" and passes the name to ssh.
std::string why_no_name(std::string_view name) {
  bool const printable = std::ranges::all_of(name, [](unsigned char c) { return c > ' ' && c != 0x7f; });
  if (name.empty() || !printable) return "without blanks and control characters";
  if (name.find_first_of(",:=") != std::string_view::npos) return "without , and : and =";
  auto const of_a_name = [](char c) {
    return is_letter(c) || is_digit(c) || std::string_view("._-@").find(c) != std::string_view::npos;
  };
  if (!std::ranges::all_of(name, of_a_name)) return "of letters of ASCII, digits, dots, - and _";
  return name.starts_with('-') ? "that does not begin with -" : "";
}

/// The words of a line, with "slots = 4" as "slots=4".
std::vector<std::string> words_of(std::string line) {
  line = line.substr(0, line.find('#'));
  std::string joined;
  for (char const c : line) {
    if (c == '=') joined.erase(joined.find_last_not_of(" \t\r") + 1);
    bool const blank = c == ' ' || c == '\t' || c == '\r';
    if (!(blank && joined.ends_with('='))) joined += c;
  }
  Classic<std::istringstream> words(joined);
  return {std::istream_iterator<std::string>(words), {}};
}

char const* what_it_is(mode_t mode) {
  if (S_ISDIR(mode)) return "is a directory";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "is a device";
  return "is no file";
}

/// The content of a regular file or a pipe.
std::string content_of_hostfile(std::string const& path, Deadline deadline) {
  auto const refuse = [&](auto const&... reason) {
    refuse_hosts(text("--hostfile ", path, ": ", reason...));
  };
  // Without O_NONBLOCK, opening a FIFO would wait for its writer.
  FileDescriptor const file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    refuse(what_it_is(status.st_mode), "; expected a file or a pipe");
  }
  std::string content;
  std::array<char, (64_KiB).value> piece{};
  for (;;) {
    pollfd waiting{file.get(), POLLIN, 0};  // a regular file is always ready
    if (poll(&waiting, 1, static_cast<int>(deadline.remaining().count())) == 0) {
      refuse("this pipe has not ended within ", seconds(deadline.allowed()), " s");
    }
    ssize_t const count = ::read(file.get(), piece.data(), piece.size());
    if (count == 0) return content;
    if (count < 0 && errno != EINTR && errno != EAGAIN) refuse(std::strerror(errno));
    if (count > 0) content.append(piece.data(), static_cast<std::size_t>(count));
    if (content.size() > kMost)
      refuse("has more than ", to_string(Bytes{kMost}), ", expected at most that much");
  }
}

}  // namespace

std::vector<Host> parse_hostfile(std::istream& in, std::string const& path) {
  std::vector<Host> hosts;
  std::map<std::string, int> first_line;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    auto const at_line = [&](auto const&... reason) {
      refuse_hosts(text(path, ":", number, ": ", reason...));
    };
    if (number == 1 &&
        (line.starts_with("\xef\xbb\xbf") || line.starts_with("\xff\xfe") || line.starts_with("\xfe\xff"))) {
      at_line("begins with a byte-order mark; expected plain text: save it as UTF-8 without one");
    }
    auto const words = words_of(line);
    if (words.empty()) continue;
    Host host{words[0], 1};
    if (auto const rule = why_no_name(host.name); !rule.empty()) {
      at_line("expected a host's name first, ", rule, ", such as in node7 slots=4, found \"", words[0], "\"");
    }
    std::set<std::string> given;
    int most = kMaxRanks;
    for (auto word = words.begin() + 1; word != words.end(); ++word) {
      std::size_t const equals = word->find('=');
      std::string const name = word->substr(0, equals);
      std::string const value = equals == std::string::npos ? "" : word->substr(equals + 1);
      if (!given.insert(name).second) at_line(name, " stands there twice");
      if (name == "user" || name == "username") {
        at_line(name, " is not passed on to mpirun; name the user in ~/.ssh/config");
      } else if (name != "slots" && name != "max-slots" && name != "max_slots") {
        at_line("expected slots=N behind the host's name, found \"", *word, "\"");
      }
      auto const slots = whole_number(value, 1, kMaxRanks);
      if (!slots) at_line(name, " expects a whole number from 1 to ", kMaxRanks, ", found \"", value, "\"");
      (name == "slots" ? host.slots : most) = *slots;
    }
    if (host.slots > most) at_line("slots=", host.slots, " is more than max-slots=", most);
    auto const [place, is_new] = first_line.emplace(host.name, number);
    if (!is_new) at_line(host.name, " stands in line ", place->second, " already; give it slots=N once");
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) refuse_hosts(text(path, ": no host in it; expected lines such as: node7 slots=4"));
  return hosts;
}

std::vector<Host> read_hostfile(std::string const& path, Deadline deadline) {
  Classic<std::istringstream> in(content_of_hostfile(path, deadline));
  return parse_hostfile(in, path);
}

std::vector<Host> parse_host_list(std::string_view list) {
  std::vector<Host> hosts;
  for (std::string_view const entry : entries_of(list)) {
    std::size_t const colon = std::min(entry.find(':'), entry.size());
    auto const slots =
        colon == entry.size() ? std::optional(1) : whole_number(entry.substr(colon + 1), 1, kMaxRanks);
    if (colon == 0 || !slots) {
      refuse_hosts(
          text("--host ", list, ": expected names with slots, such as node7:4,node8, found \"", entry, "\""));
    }
    std::string const name(entry.substr(0, colon));
    if (auto const rule = why_no_name(name); !rule.empty()) {
      refuse_hosts(text("--host ", list, ": expected names ", rule, ", found \"", name, "\""));
    }
    auto const known = std::ranges::find(hosts, name, &Host::name);
    if (known == hosts.end()) {
      hosts.push_back({name, *slots});
    } else {
      known->slots += *slots;
    }
  }
  return hosts;
}

}  // namespace ddp::launcher

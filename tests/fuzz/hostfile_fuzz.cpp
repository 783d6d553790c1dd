// F15: hostfiles and --host lists. Input: the text; it is read as either.
#include "launcher/options/hosts.hpp"

#include <set>
#include <sstream>
#include <string>

#include "ddp/core/text.hpp"
#include "fuzz/property.hpp"
#include "launcher/process/exit_code.hpp"

namespace {

using namespace ddp::launcher;
using ddp::fuzz::must;

void check_hosts(std::vector<Host> const& hosts) {
  must(!hosts.empty(), "what is accepted names a host");
  std::set<std::string> names;
  for (Host const& host : hosts) {
    must(host.slots >= 1, "every host has a slot");
    must(names.insert(host.name).second, "no host stands twice");
    must(!host.name.starts_with('-'), "no host's name is an option to ssh");
    for (char const c : host.name) {
      must(static_cast<unsigned char>(c) > ' ' && c != '\x7f',
           "a host's name has no blanks or control characters");
      must(std::string_view(";|&$`'\"\\<>()*?[]{}!~#").find(c) == std::string_view::npos,
           "nothing that a shell would read");
    }
  }
}

/// As mpirun is told.
std::string list_of(std::vector<Host> const& hosts) {
  std::string list;
  for (Host const& host : hosts) list += ddp::text(list.empty() ? "" : ",", host.name, ":", host.slots);
  return list;
}

void read_as_hostfile(std::string const& content) {
  std::istringstream in(content);
  std::vector<Host> hosts;
  try {
    hosts = parse_hostfile(in, "hosts");
  } catch (ExitError const& error) {
    must(error.exit_code() == exit_code::kUsage, "a bad hostfile ends with 64");
    must(std::string_view(error.what()).starts_with("hosts:"), "the message names the file");
    return;
  }
  check_hosts(hosts);
  must(parse_host_list(list_of(hosts)) == hosts, "mpirun is told the hosts that the file names");
}

void read_as_list(std::string const& list) {
  std::vector<Host> hosts;
  try {
    hosts = parse_host_list(list);
  } catch (ExitError const& error) {
    must(error.exit_code() == exit_code::kUsage, "a bad list ends with 64");
    return;
  }
  check_hosts(hosts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string const content(ddp::fuzz::as_text(data, size));
  read_as_hostfile(content);
  read_as_list(content);
  return 0;
}

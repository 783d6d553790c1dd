#include "launcher/options/options.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <iterator>

#include "core/ascii.hpp"
#include "core/parse_number.hpp"
#include "core/suggestion.hpp"
#include "ddp/core/text.hpp"
#include "launcher/options/description.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

namespace po = boost::program_options;
using Words = std::vector<std::string>;

/// Options of other launchers that people type by habit.
std::string foreign_hint(std::string const& name) {
  if (name == "-n" || name == "-np" || name == "--np") {
    return "; the number of ranks is given with --cpus N or --gpus LIST";
  }
  bool const of_meeting =
      name.starts_with("--rdzv-") || name.starts_with("--master-") || name == "--node-rank";
  if (of_meeting)
    return "; ranks find each other without it, and several hosts are named with --hostfile or --host";
  return {};
}

[[noreturn]] void refuse_unknown(std::string const& name, po::options_description const& known) {
  std::string hint = foreign_hint(name);
  if (hint.empty()) {
    Words names;
    for (auto const& option : known.options()) names.push_back("--" + option->long_name());
    if (auto const meant = nearest(name, names)) hint = "; did you mean " + *meant + "?";
  }
  refuse_options("unknown option " + name + hint);
}

/// Splits the arguments before the program into options and their values; `command` gets the rest. The
/// library would look for options after the program too, takes an empty word for an abbreviation of every
/// option, and says less of errors. It does values, repetitions and effects.
po::parsed_options split(std::span<std::string const> arguments, po::options_description const& description,
                         Words& command) {
  po::parsed_options found(&description, po::command_line_style::allow_long);
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    std::string word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    // torchrun accepts both "--log_dir=a_b" and "--log-dir=a_b".
    if (word[1] == '-') std::replace(word.begin(), std::ranges::find(word, '='), '_', '-');
    std::string const name = word.substr(0, word.find('='));
    std::string const key = word[1] == '-' ? name.substr(2) : name;
    auto const* const option = key.empty() ? nullptr : description.find_nothrow(key, false);
    if (option == nullptr) refuse_unknown(name, description);
    po::option each(option->long_name(), {});
    if (name.size() != word.size()) each.value.push_back(word.substr(name.size() + 1));
    if (option->semantic()->max_tokens() == 0) {
      if (!each.value.empty()) refuse_options(name + " takes no value, found " + word);
    } else {
      if (each.value.empty()) {
        if (i + 1 == arguments.size()) refuse_options(name + " needs a value");
        each.value.push_back(arguments[++i]);
      }
      if (each.value[0].empty()) refuse_options(name + " needs a value, found an empty word");
    }
    found.options.push_back(each);
  }
  command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return found;
}

void refuse_both(po::variables_map const& given, char const* one, char const* other, char const* why) {
  if (given.count(one) > 0 && given.count(other) > 0) {
    refuse_options(text("--", one, " and --", other, " contradict each other: ", why));
  }
}

void judge_hosts(po::variables_map const& given, Options& options) {
  bool const standalone = given.count("standalone") > 0;
  if ((standalone || given.count("nproc-per-node") > 0) && !options.hostfile && !options.host &&
      options.nnodes == 1) {
    options.nnodes.reset();  // torchrun's word for this host
  }
  char const* const hosts = options.nnodes     ? "nnodes"
                            : options.host     ? "host"
                            : options.hostfile ? "hostfile"
                                               : nullptr;
  if (hosts != nullptr && given.count("engine") > 0 && options.engine == Engine::local) {
    refuse_options(text("--engine local and --", hosts,
                        " contradict each other: the local engine starts ranks on this host only"));
  }
  if (hosts != nullptr) options.engine = Engine::mpi;
  if (options.survive && options.engine == Engine::mpi) {
    refuse_options(text("--survive and --", hosts != nullptr ? hosts : "engine mpi",
                        " contradict each other: mpirun ends every rank when one is lost"));
  }
  if (standalone && options.engine == Engine::mpi) {
    refuse_options(text("--standalone and --", hosts != nullptr ? hosts : "engine mpi",
                        " contradict each other: --standalone is of this host alone"));
  }
}

/// --check and --list-devices apply to this host, and take no program.
void judge_look(Options const& options) {
  char const* const name = options.check ? "check" : "list-devices";
  if (!options.command.empty()) {
    refuse_options(
        text("--", name, " starts nothing: expected no program, found \"", options.command.front(), "\""));
  }
  if (options.engine == Engine::mpi) {
    refuse_options(text("--", name,
                        " looks at the host that it runs on. For several: mpirun --hostfile FILE --map-by "
                        "ppr:1:node --bind-to none ddp-launch --",
                        name, ", or srun --ntasks-per-node 1 ddp-launch --", name));
  }
}

}  // namespace

void refuse_options(std::string const& message) {
  throw ExitError(exit_code::kUsage, message + "\n  try: ddp-launch --help");
}

std::optional<int> whole_number(std::string_view words, int least, int most) {
  auto const number = parse_number<int>(words);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

Options parse_options(std::span<std::string const> arguments) {
  Options options;
  po::options_description description;
  for (OptionGroup const& group : described_options(options)) description.add(group.options);
  po::variables_map given;
  try {
    po::store(split(arguments, description, options.command), given);
  } catch (po::multiple_occurrences const& error) {
    refuse_options(error.what());
  }
  options.help = given.count("help") > 0;
  options.version = given.count("version") > 0;
  if (options.help || options.version) return options;

  refuse_both(given, "gpus", "cpus", "ranks of one job are all of one kind");
  refuse_both(given, "virtual", "cpus",
              "--virtual puts several ranks on each GPU; CPU ranks share the processor anyway, so give their "
              "number with --cpus alone");
  for (char const* other : {"gpus", "cpus", "virtual"}) {
    refuse_both(given, "nproc-per-node", other, "both say which ranks a host has");
  }
  refuse_both(given, "log-dir", "no-log-files", "one asks for files, the other for none");
  refuse_both(given, "quiet", "tee", "--quiet shows nothing of the ranks");
  refuse_both(given, "quiet", "only-rank", "--quiet shows nothing of the ranks");
  refuse_both(given, "hostfile", "host", "both name the hosts");
  refuse_both(given, "check", "list-devices", "--check lists the GPUs too");
  for (char const* const of_survive : {"min-ranks", "replace"}) {
    if (given.count(of_survive) == 0 || given.count("survive") > 0) continue;
    refuse_options(text("--", of_survive, " is of --survive: without it no rank goes on when one is lost"));
  }
  for (char const* look : {"check", "list-devices"}) {
    refuse_both(given, look, "dry-run", "one looks at the machine, the other prints a job's plan");
  }
  po::notify(given);
  judge_hosts(given, options);
  if (options.check || options.list_devices) {
    judge_look(options);
    return options;
  }
  if (options.json) refuse_options("--json is of --check and --list-devices");
  if (options.command.empty() && options.module) {
    refuse_options("-m expects a module's name behind the options");
  }
  if (options.command.empty()) {
    refuse_options("no program given; expected: ddp-launch [options] [--] program [arguments…]");
  }
  if (options.command.front().empty()) refuse_options("the program's name is an empty word");
  return options;
}

}  // namespace ddp::launcher

#include "launcher/options/options.hpp"

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cmath>
#include <functional>
#include <iterator>
#include <sstream>

#include "core/ascii.hpp"
#include "core/parse_number.hpp"
#include "core/suggestion.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

namespace po = boost::program_options;
using Words = std::vector<std::string>;

int number(std::string const& name, std::string const& value, int least, int most) {
  auto const found = whole_number(value, least, most);
  if (!found) {
    refuse_options(
        text("--", name, " expects a whole number from ", least, " to ", most, ", found \"", value, "\""));
  }
  return *found;
}

std::chrono::milliseconds duration(std::string const& name, std::string const& value) {
  constexpr double kMost = 86400.0;
  auto const number = parse_number<double>(value);
  if (!number || !(*number >= 0.0 && *number <= kMost)) {
    refuse_options(text("--", name, " expects seconds from 0 to ", kMost, ", found \"", value, "\""));
  }
  return std::chrono::milliseconds(std::llround(*number * 1000.0));
}

Export read_export(std::string const& given) {
  std::size_t const equals = given.find('=');
  Export each{given.substr(0, equals), std::nullopt};
  auto const of_a_name = [](char c) { return is_letter(c) || is_digit(c) || c == '_'; };
  if (each.name.empty() || is_digit(each.name[0]) || !std::ranges::all_of(each.name, of_a_name)) {
    refuse_options("-x expects NAME or NAME=VALUE, with a name of letters, digits and _, found \"" + given +
                   "\"");
  }
  if (equals != std::string::npos) each.value = given.substr(equals + 1);
  return each;
}

void read_engine(std::string const& value, Options& options) {
  if (value != "local" && value != "mpi") {
    refuse_options("--engine expects local or mpi, found \"" + value + "\"");
  }
  options.engine = value == "mpi" ? Engine::mpi : Engine::local;
}

void read_tee(std::string const& value, Options& options) {
  constexpr std::array<std::string_view, 4> kWords{"none", "out", "err", "both"};
  auto const found = std::ranges::find(kWords, value) - kWords.begin();
  auto const bits = found < 4 ? std::optional(static_cast<int>(found)) : whole_number(value, 0, 3);
  if (!bits) refuse_options("--tee expects none, out, err, both, or 0, 1, 2, 3, found \"" + value + "\"");
  options.show_stdout = (*bits & 1) != 0;
  options.show_stderr = (*bits & 2) != 0;
}

void read_per_node(std::string const& value, Options& options) {
  if (value == "gpu") {
    options.gpus = "all";
  } else if (value == "cpu") {
    options.per_node = PerNode::cores;
  } else if (value == "auto") {
    options.per_node = PerNode::cores_without_gpus;
  } else if (std::ranges::all_of(value, is_letter)) {
    refuse_options("--nproc-per-node expects a number, gpu, cpu or auto, found \"" + value + "\"");
  } else {
    options.per_node = PerNode::count;
    options.ranks_per_node = number("nproc-per-node", value, 1, kMaxRanks);
  }
}

/// Options under one heading of --help, with what each sets once all are known to be well-formed.
struct Section : po::options_description {
  explicit Section(char const* title) : options_description(title, 110, 60) {}

  void words(char const* names, char const* value, std::function<void(std::string const&)> const& set,
             char const* help) {
    add_options()(names, po::value<std::string>()->value_name(value)->notifier(set), help);
  }
  void words(char const* name, char const* value, std::optional<std::string>& place, char const* help) {
    auto const set = [&place](std::string const& given) { place = given; };
    words(name, value, set, help);
  }
  template <class Place>
  void count(char const* name, char const* value, int least, int most, Place& place, char const* help) {
    auto const set = [=, &place](std::string const& given) {
      place = Place{number(name, given, least, most)};
    };
    words(name, value, set, help);
  }
  void time(char const* name, std::chrono::milliseconds& place, char const* help) {
    auto const set = [=, &place](std::string const& given) { place = duration(name, given); };
    words(name, "SECONDS", set, help);
  }
  void flag(char const* names, bool& place, bool set, char const* help) {
    add_options()(names, po::value<bool>()->zero_tokens()->notifier([&place, set](bool) { place = set; }),
                  help);
  }
};

po::options_description described_options(Options& to) {
  Section ranks("Ranks");
  ranks.count(
      "cpus", "N", 1, kMaxRanks, to.cpus,
      "start N CPU ranks (default where no GPU is visible: one per physical core, at most 2). CPU "
      "ranks see no GPU: CUDA_VISIBLE_DEVICES is set to nothing for them. With several hosts: on each");
  ranks.words("gpus", "LIST|all", to.gpus,
              "start one rank per GPU of LIST (default: all that CUDA_VISIBLE_DEVICES leaves): indices into "
              "those, UUIDs, MIG ids, separated by commas; their order is the order of the ranks");
  ranks.count(
      "virtual", "N", 1, kMaxRanks, to.ranks_per_device,
      "start N ranks on each GPU, which share it; without a GPU N CPU ranks, each with N CPU devices");
  ranks.words(
      "nproc-per-node", "N|gpu|cpu|auto", [&](auto const& value) { read_per_node(value, to); },
      "as torchrun's: N ranks on this host (on each), of GPUs where any is visible; gpu: one per GPU, "
      "as --gpus all; cpu: a CPU rank per core; auto: one per GPU, without GPUs one per core");
  ranks.add_options()("standalone", "as torchrun's: on this host only, which is the default");
  ranks.flag("no-affinity", to.affinity, false,
             "let every rank use every core (default: those near its GPU, shared with its neighbours)");
  Section program("Program");
  program.flag(
      "module,m", to.module, true,
      "the program is a module of Python's: it is run with python3 -u -m. One whose name ends in .py "
      "is run with python3 -u");
  Section hosts("Hosts");
  hosts.words(
      "engine", "WHICH", [&](auto const& value) { read_engine(value, to); },
      "local: ddp-launch starts the ranks itself, on this host. mpi: it has Open MPI's mpirun start "
      "them (default: local; mpi with one of the following)");
  hosts.words("hostfile", "FILE", to.hostfile, "start ranks on the hosts of FILE: \"node7 slots=4\" a line");
  hosts.words("host", "LIST", to.host, "start ranks on these hosts: node7:4,node8:4");
  hosts.count("nnodes", "N", 1, kMaxRanks, to.nnodes,
              "start ranks on the first N hosts, or inside a job of Slurm on N of its hosts (with --cpus)");
  auto const add_exports = [&](Words const& all) {
    std::ranges::transform(all, std::back_inserter(to.exports), read_export);
  };
  hosts.add_options()(
      "export,x", po::value<Words>()->value_name("NAME[=VALUE]")->notifier(add_exports),
      "set a variable for every rank; without a value, pass ddp-launch's own on to other hosts "
      "too. May be repeated");
  Section output("Output");
  output.words("log-dir", "DIR", to.log_dir,
               "write every rank's output to DIR/rankN.out and DIR/rankN.err (default: "
               "ddp-logs/PROGRAM-DATE-PID)");
  output.flag("no-log-files", to.log_files, false, "write no files");
  output.words(
      "tee", "WHICH", [&](auto const& value) { read_tee(value, to); },
      "which streams of the ranks also go to the terminal: none, out, err, both, or 0 … 3 as torchrun "
      "counts them (default: both)");
  output.count("only-rank", "R", 0, kMaxRanks - 1, to.only_rank, "show only rank R on the terminal");
  output.flag(
      "terminal", to.terminal, true,
      "give rank 0, or that of --only-rank, a terminal where ddp-launch has one, as a job's only rank "
      "always has");
  output.flag("no-prefix", to.prefix, false, "show the ranks' lines without [rank] in front");
  output.flag("timestamps", to.timestamps, true,
              "put the time at which it came in front of each line of the ranks, in the files too");
  output.flag("no-line-buffering", to.line_buffering, false,
              "leave it to the programs when they write what they print (default: each line at once, by "
              "PYTHONUNBUFFERED=1 where it is unset and a library that C programs preload)");
  output.words("events", "FILE", to.events,
               "append what happens to the job to FILE, for machines: a JSON object a line");
  output.flag("quiet", to.quiet, true,
              "nothing of the ranks on the terminal, and no word of ddp-launch's own unless something fails");
  Section watching("Watching");
  watching.time("failure-grace", to.failure_grace,
                "how long the other ranks have to end by themselves after the first failure; then they are "
                "killed (default: 5)");
  watching.time("grace", to.grace,
                "how long the ranks have to end after SIGINT, SIGTERM or SIGHUP was forwarded to them; then "
                "they are killed. A second Ctrl-C kills at once (default: 30)");
  watching.count(
      "max-restarts", "N", 0, kMaxRestarts, to.max_restarts,
      "start the whole group again when it failed, at most N times; the program goes on from its "
      "last checkpoint. Gives up when two restarts in a row end before their first step (default: 0)");
  watching.flag("survive", to.survive, true,
                "when a rank is lost the others go on in their processes, if the program can "
                "(World::rebuild()). Ranks of this host");
  watching.count("min-ranks", "M", 1, kMaxRanks, to.min_ranks,
                 "with --survive: as long as M ranks are left (default: 1); with fewer the job has failed");
  watching.count(
      "replace", "N", 0, kMaxRestarts, to.replacements,
      "with --survive: start a new process for a lost rank, at most N in all; the others take it in "
      "when it is ready (default: 0)");
  Section other("Other");
  other.flag("dry-run", to.dry_run, true,
             "print the plan (ranks, devices, cores, environment, command) and start nothing");
  other.flag(
      "check", to.check, true,
      "look whether this machine is fit for ranks, with --gpus, --cpus or --virtual for those of a job: GPUs "
      "and who uses them, peer access, /dev/shm, limits, NCCL and MPI. Starts nothing; 0 if nothing failed");
  other.flag("list-devices", to.list_devices, true,
             "print which device is which, physical and for ranks, with versions");
  other.flag("json", to.json, true, "what --check or --list-devices finds as JSON");
  other.flag("help,h", to.help, true, "print this text");
  other.flag("version", to.version, true, "print the version");
  po::options_description all("ddp-launch [options] [--] program [arguments…]", 110, 60);
  all.add(ranks).add(program).add(hosts).add(output).add(watching).add(other);
  return all;
}

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
/// option, and says less of errors. It does values, repetitions, effects and --help.
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
  auto const description = described_options(options);
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

std::string help_text() {
  Options unused;
  Classic<std::ostringstream> out;
  out << "Starts one process per GPU (or N CPU processes) of a program, watches them, and says what went "
         "wrong.\n\n"
      << described_options(unused)
      << "\n"
         "Environment of each rank: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, "
         "GROUP_WORLD_SIZE,\nMASTER_ADDR, MASTER_PORT, TORCHELASTIC_*, DDP_JOB_ID, DDP_GENERATION, "
         "DDP_REPLACEMENT, DDP_SURVIVE, "
         "DDP_CONTROL, DDP_ERROR_FILE;\nPYTHONUNBUFFERED, OMP_NUM_THREADS, COLUMNS and LINES where they are "
         "unset. GPU ranks: CUDA_VISIBLE_DEVICES\nas UUIDs, DDP_VIRTUAL_DEVICES with --virtual, "
         "NCCL_SOCKET_IFNAME=lo and NCCL_RAS_ENABLE=0 where they are unset.\n"
         "Exit code: the first failed rank's own, 128 + its signal; 64 wrong options, 69 no such device, or "
         "a failed --check,\n73 --log-dir cannot be made, 74 output lost, 75 worth a retry (a full GPU too), "
         "126 not executable, 127 program not found.\n";
  return std::move(out).str();
}

}  // namespace ddp::launcher

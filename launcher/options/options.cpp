#include "launcher/options/options.hpp"

#include <algorithm>
#include <array>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/value_semantic.hpp>
#include <cmath>
#include <map>
#include <sstream>

#include "core/ascii.hpp"
#include "core/parse_number.hpp"
#include "core/suggestion.hpp"
#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

namespace po = boost::program_options;

po::options_description described_options() {
  auto const text_value = [](char const* name) { return po::value<std::string>()->value_name(name); };
  po::options_description ranks("Ranks", 110, 60);
  ranks.add_options()            //
      ("cpus", text_value("N"),  //
       "start N CPU ranks (default where no GPU is visible: one per physical core, at most 2). "
       "CPU ranks see no GPU: CUDA_VISIBLE_DEVICES is set to nothing for them. With several hosts: on "
       "each")  //
      ("gpus", text_value("LIST|all"),
       "start one rank per GPU of LIST (default: all that CUDA_VISIBLE_DEVICES leaves): indices into those, "
       "UUIDs, MIG ids, separated by commas; their order is the order of the ranks")  //
      ("virtual", text_value("N"),
       "start N ranks on each GPU, which share it; without a GPU N CPU ranks, each with N CPU devices")  //
      ("nproc-per-node", text_value("N|gpu|cpu|auto"),
       "as torchrun's: N ranks on this host (on each), of GPUs where any is visible; gpu: one per GPU, as "
       "--gpus all; cpu: a CPU rank per core; auto: one per GPU, without GPUs one per core")  //
      ("standalone", "as torchrun's: on this host only, which is the default")                //
      ("no-affinity",
       "let every rank use every core (default: those near its GPU, shared with its neighbours)");
  po::options_description program("Program", 110, 60);
  program.add_options()  //
      ("module,m",
       "the program is a module of Python's: it is run with python3 -u -m. One whose name ends in .py is run "
       "with python3 -u");
  po::options_description hosts("Hosts", 110, 60);
  hosts.add_options()  //
      ("engine", text_value("WHICH"),
       "local: ddp-launch starts the ranks itself, on this host. mpi: it has Open MPI's mpirun start them "
       "(default: local; mpi with one of the following)")                                             //
      ("hostfile", text_value("FILE"), "start ranks on the hosts of FILE: \"node7 slots=4\" a line")  //
      ("host", text_value("LIST"), "start ranks on these hosts: node7:4,node8:4")                     //
      ("nnodes", text_value("N"),
       "start ranks on the first N hosts, or inside a job of Slurm on N of its hosts (with --cpus)")  //
      ("export,x", text_value("NAME[=VALUE]"),
       "set a variable for every rank; without a value, pass ddp-launch's own on to other hosts too. May be "
       "repeated");
  po::options_description output("Output", 110, 60);
  output.add_options()  //
      ("log-dir", text_value("DIR"),
       "write every rank's output to DIR/rankN.out and DIR/rankN.err "
       "(default: ddp-logs/PROGRAM-DATE-PID)")  //
      ("no-log-files", "write no files")        //
      ("tee", text_value("WHICH"),
       "which streams of the ranks also go to the terminal: none, out, err, both, "
       "or 0 … 3 as torchrun counts them (default: both)")                //
      ("only-rank", text_value("R"), "show only rank R on the terminal")  //
      ("terminal",
       "give rank 0, or that of --only-rank, a terminal where ddp-launch has one, as a job's only rank "
       "always has")                                                                                        //
      ("no-prefix", "show the ranks' lines without [rank] in front")                                        //
      ("timestamps", "put the time at which it came in front of each line of the ranks, in the files too")  //
      ("no-line-buffering",
       "leave it to the programs when they write what they print (default: each line at once, by "
       "PYTHONUNBUFFERED=1 where it is unset and a library that C programs preload)")  //
      ("events", text_value("FILE"),
       "append what happens to the job to FILE, for machines: a JSON object a line")  //
      ("quiet",
       "nothing of the ranks on the terminal, and no word of ddp-launch's own unless something fails");
  po::options_description watching("Watching", 110, 60);
  watching.add_options()  //
      ("failure-grace", text_value("SECONDS"),
       "how long the other ranks have to end by themselves after the first failure; "
       "then they are killed (default: 5)")  //
      ("grace", text_value("SECONDS"),
       "how long the ranks have to end after SIGINT, SIGTERM or SIGHUP was forwarded to them; then they are "
       "killed. A second Ctrl-C kills at once (default: 30)")  //
      ("max-restarts", text_value("N"),
       "start the whole group again when it failed, at most N times; the program goes on from its last "
       "checkpoint. Gives up when two restarts in a row end before their first step (default: 0)");
  po::options_description other("Other", 110, 60);
  other.add_options()                                                                                //
      ("dry-run", "print the plan (ranks, devices, cores, environment, command) and start nothing")  //
      ("check",
       "look whether this machine is fit for ranks, with --gpus, --cpus or --virtual for those of a job: "
       "GPUs and who "
       "uses them, peer access, /dev/shm, limits, NCCL and MPI. Starts nothing; 0 if nothing failed")  //
      ("list-devices", "print which device is which, physical and for ranks, with versions")           //
      ("json", "what --check or --list-devices finds as JSON")                                         //
      ("help,h", "print this text")                                                                    //
      ("version", "print the version");
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

/// "--log_dir=a_b" as "--log-dir=a_b": torchrun takes either.
std::string with_dashes(std::string word) {
  if (!word.starts_with("--")) return word;
  std::replace(word.begin(), std::find(word.begin(), word.end(), '='), '_', '-');
  return word;
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

/// What stands before the program, by long names, and the program with its arguments.
struct CommandLine {
  std::map<std::string, std::string> given;  ///< an option without a value has an empty one
  std::vector<Export> exports;               ///< may be given again
  std::vector<std::string> command;

  [[nodiscard]] bool has(std::string const& name) const { return given.contains(name); }

  [[nodiscard]] std::optional<std::string> value(std::string const& name) const {
    return has(name) ? std::optional(given.at(name)) : std::nullopt;
  }

  [[nodiscard]] std::optional<int> number(std::string const& name, int least, int most) const {
    if (!has(name)) return std::nullopt;
    auto const found = whole_number(given.at(name), least, most);
    if (!found) {
      refuse_options(text("--", name, " expects a whole number from ", least, " to ", most, ", found \"",
                          given.at(name), "\""));
    }
    return found;
  }

  void refuse_both(char const* one, char const* other, char const* why) const {
    if (has(one) && has(other)) {
      refuse_options(text("--", one, " and --", other, " contradict each other: ", why));
    }
  }
};

[[noreturn]] void refuse_unknown(std::string const& name, po::options_description const& description) {
  std::string hint = foreign_hint(name);
  if (hint.empty()) {
    std::vector<std::string> known;
    for (auto const& option : description.options()) known.push_back("--" + option->long_name());
    if (auto const meant = nearest(name, known)) hint = "; did you mean " + *meant + "?";
  }
  refuse_options("unknown option " + name + hint);
}

CommandLine read(std::span<std::string const> arguments) {
  auto const description = described_options();
  CommandLine line;
  std::string repeated;  // the first repeated option; worse problems are reported first
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    std::string const word = with_dashes(arguments[i]);
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    std::string const name = word.substr(0, word.find('='));
    std::string const long_name = word == "-h"     ? "help"
                                  : word == "-m"   ? "module"
                                  : word == "-x"   ? "export"
                                  : word[1] != '-' ? ""
                                                   : name.substr(2);
    auto const* option = long_name.empty() ? nullptr : description.find_nothrow(long_name, false);
    if (option == nullptr) refuse_unknown(name, description);
    bool const has_value = name.size() != word.size();
    std::string value = has_value ? word.substr(name.size() + 1) : "";
    if (option->semantic()->max_tokens() == 0) {
      if (has_value) refuse_options(name + " takes no value, found " + word);
    } else {
      if (!has_value) {
        if (i + 1 == arguments.size()) refuse_options(name + " needs a value");
        value = arguments[++i];
      }
      if (value.empty()) refuse_options(name + " needs a value, found an empty word");
    }
    if (option->long_name() == "export") {
      line.exports.push_back(read_export(value));
      continue;
    }
    if (!line.given.emplace(option->long_name(), value).second && repeated.empty())
      repeated = option->long_name();
  }
  if (!repeated.empty()) refuse_options("option '--" + repeated + "' cannot be specified more than once");
  line.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return line;
}

std::chrono::milliseconds duration(std::string const& option, std::string const& value) {
  constexpr double kMost = 86400.0;
  auto const number = parse_number<double>(value);
  if (!number || !(*number >= 0.0 && *number <= kMost)) {
    refuse_options(text(option, " expects seconds from 0 to ", kMost, ", found \"", value, "\""));
  }
  return std::chrono::milliseconds(std::llround(*number * 1000.0));
}

void read_tee(std::string const& value, Options& options) {
  constexpr std::array<std::string_view, 4> kWords{"none", "out", "err", "both"};
  auto const found = std::ranges::find(kWords, value) - kWords.begin();
  auto const bits = found < 4 ? std::optional(static_cast<int>(found)) : whole_number(value, 0, 3);
  if (!bits) refuse_options("--tee expects none, out, err, both, or 0, 1, 2, 3, found \"" + value + "\"");
  options.show_stdout = (*bits & 1) != 0;
  options.show_stderr = (*bits & 2) != 0;
}

void read_engine(CommandLine const& line, Options& options) {
  line.refuse_both("hostfile", "host", "both name the hosts");
  options.nnodes = line.number("nnodes", 1, kMaxRanks);
  char const* hosts = nullptr;
  for (char const* const name : {"hostfile", "host", "nnodes"}) {
    if (line.has(name)) hosts = name;
  }
  bool const in_torchruns_words = line.has("nproc-per-node") || line.has("standalone");
  bool const one_by_count = !line.has("hostfile") && !line.has("host") && options.nnodes == 1;
  if (in_torchruns_words && one_by_count) {  // for torchrun that is this host
    hosts = nullptr;
    options.nnodes.reset();
  }
  if (hosts != nullptr) options.engine = Engine::mpi;
  if (auto const engine = line.value("engine")) {
    if (engine != "local" && engine != "mpi") {
      refuse_options("--engine expects local or mpi, found \"" + *engine + "\"");
    }
    if (engine == "local" && hosts != nullptr) {
      refuse_options(text("--engine local and --", hosts,
                          " contradict each other: the local engine starts ranks on this host only"));
    }
    if (engine == "mpi") options.engine = Engine::mpi;
  }
  options.hostfile = line.value("hostfile");
  options.host = line.value("host");
  if (line.has("standalone") && options.engine == Engine::mpi) {
    refuse_options(text("--standalone and --", hosts != nullptr ? hosts : "engine mpi",
                        " contradict each other: --standalone is of this host alone"));
  }
}

void read_per_node(CommandLine const& line, Options& options) {
  auto const value = line.value("nproc-per-node");
  if (!value) return;
  for (char const* other : {"gpus", "cpus", "virtual"}) {
    line.refuse_both("nproc-per-node", other, "both say which ranks a host has");
  }
  if (value == "gpu") {
    options.gpus = "all";
  } else if (value == "cpu") {
    options.per_node = PerNode::cores;
  } else if (value == "auto") {
    options.per_node = PerNode::cores_without_gpus;
  } else if (std::ranges::all_of(*value, is_letter)) {
    refuse_options("--nproc-per-node expects a number, gpu, cpu or auto, found \"" + *value + "\"");
  } else {
    options.per_node = PerNode::count;
    options.ranks_per_node = line.number("nproc-per-node", 1, kMaxRanks);
  }
}

/// --check and --list-devices apply to this host, and take no program.
void judge_look(CommandLine const& line, Options const& options) {
  std::string const name = options.check ? "check" : "list-devices";
  line.refuse_both("check", "list-devices", "--check lists the GPUs too");
  line.refuse_both(name.c_str(), "dry-run", "one looks at the machine, the other prints a job's plan");
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
  CommandLine line = read(arguments);
  Options options;
  options.help = line.has("help");
  options.version = line.has("version");
  options.command = std::move(line.command);
  options.exports = std::move(line.exports);
  if (options.help || options.version) return options;

  line.refuse_both("gpus", "cpus", "ranks of one job are all of one kind");
  line.refuse_both("virtual", "cpus",
                   "--virtual puts several ranks on each GPU; CPU ranks share the processor anyway, so give "
                   "their number with --cpus alone");
  line.refuse_both("log-dir", "no-log-files", "one asks for files, the other for none");
  line.refuse_both("quiet", "tee", "--quiet shows nothing of the ranks");
  line.refuse_both("quiet", "only-rank", "--quiet shows nothing of the ranks");

  read_engine(line, options);
  read_per_node(line, options);
  if (line.has("gpus")) options.gpus = line.value("gpus");  // --nproc-per-node may have named them
  options.cpus = line.number("cpus", 1, kMaxRanks);
  options.ranks_per_device = line.number("virtual", 1, kMaxRanks).value_or(1);
  options.affinity = !line.has("no-affinity");
  options.log_dir = line.value("log-dir");
  options.log_files = !line.has("no-log-files");
  if (auto const streams = line.value("tee")) read_tee(*streams, options);
  if (auto const rank = line.number("only-rank", 0, kMaxRanks - 1)) options.only_rank = Rank{*rank};
  options.terminal = line.has("terminal");
  options.prefix = !line.has("no-prefix");
  options.quiet = line.has("quiet");
  options.timestamps = line.has("timestamps");
  options.line_buffering = !line.has("no-line-buffering");
  options.events = line.value("events");
  options.module = line.has("module");
  if (auto const time = line.value("failure-grace"))
    options.failure_grace = duration("--failure-grace", *time);
  if (auto const time = line.value("grace")) options.grace = duration("--grace", *time);
  options.max_restarts = line.number("max-restarts", 0, kMaxRestarts).value_or(0);
  options.dry_run = line.has("dry-run");
  options.check = line.has("check");
  options.json = line.has("json");
  options.list_devices = line.has("list-devices");
  if (options.check || options.list_devices) {
    judge_look(line, options);
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
  Classic<std::ostringstream> out;
  out << "Starts one process per GPU (or N CPU processes) of a program, watches them, and says what went "
         "wrong.\n\n"
      << described_options()
      << "\n"
         "Environment of each rank: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, "
         "GROUP_WORLD_SIZE,\nMASTER_ADDR, MASTER_PORT, TORCHELASTIC_*, DDP_JOB_ID, DDP_GENERATION, "
         "DDP_CONTROL, DDP_ERROR_FILE;\nPYTHONUNBUFFERED, OMP_NUM_THREADS, COLUMNS and LINES where they are "
         "unset. GPU ranks: CUDA_VISIBLE_DEVICES\nas UUIDs, DDP_VIRTUAL_DEVICES with --virtual, "
         "NCCL_SOCKET_IFNAME=lo and NCCL_RAS_ENABLE=0 where they are unset.\n"
         "Exit code: the first failed rank's own, 128 + its signal; 64 wrong options, 69 no such device, or "
         "a failed --check,\n73 --log-dir cannot be made, 74 output lost, 75 worth a retry (a full GPU too), "
         "126 not executable, 127 program not found.\n";
  return std::move(out).str();
}

}  // namespace ddp::launcher

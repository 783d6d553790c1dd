#include "launcher/options/options.hpp"

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>

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
       "start ranks on the first N hosts, or inside a job of Slurm on N of its hosts (with --cpus)");
  po::options_description output("Output", 110, 60);
  output.add_options()  //
      ("log-dir", text_value("DIR"),
       "write every rank's output to DIR/rankN.out and DIR/rankN.err "
       "(default: ddp-logs/PROGRAM-DATE-PID)")  //
      ("no-log-files", "write no files")        //
      ("tee", text_value("WHICH"),
       "which streams of the ranks also go to the terminal: none, out, err, both, "
       "or 0 … 3 as torchrun counts them (default: both)")                                                  //
      ("only-rank", text_value("R"), "show only rank R on the terminal")                                    //
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

std::vector<std::string> known_names(po::options_description const& description) {
  std::vector<std::string> names;
  for (auto const& option : description.options()) names.push_back("--" + option->long_name());
  return names;
}

/// Options of other launchers that many fingers know.
std::string foreign_hint(std::string const& name) {
  static constexpr std::array kCounts{"-n", "-np", "--np"};
  if (std::find(kCounts.begin(), kCounts.end(), name) != kCounts.end()) {
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

/// The options before the program, each as one word (--name=value), and the program with its arguments.
struct Split {
  std::vector<std::string> options;
  std::vector<std::string> command;
};

Split split(std::span<std::string const> arguments, po::options_description const& description) {
  Split result;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    std::string const word = with_dashes(arguments[i]);
    if (word == "--") {
      ++i;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    std::string const name = word.substr(0, word.find('='));
    bool const is_short = word[1] != '-';
    std::string const long_name = word == "-h"   ? "help"
                                  : word == "-m" ? "module"
                                  : is_short     ? ""
                                                 : name.substr(2);
    auto const* option = long_name.empty() ? nullptr : description.find_nothrow(long_name, false);
    if (option == nullptr) {
      std::string hint = foreign_hint(name);
      if (hint.empty()) {
        if (auto const meant = nearest(name, known_names(description))) {
          hint = "; did you mean " + *meant + "?";
        }
      }
      refuse_options("unknown option " + name + hint);
    }
    bool const takes_value = option->semantic()->max_tokens() > 0;
    bool const has_value = name.size() != word.size();
    if (!takes_value && has_value) refuse_options(name + " takes no value, found " + word);
    std::string joined = word;
    if (takes_value && !has_value) {
      if (i + 1 == arguments.size()) refuse_options(name + " needs a value");
      joined += "=" + arguments[++i];
    }
    if (takes_value && joined.size() == name.size() + 1)
      refuse_options(name + " needs a value, found an empty word");
    result.options.push_back(joined);
  }
  result.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return result;
}

int number_of(std::string const& option, std::string const& value, int least, int most) {
  auto const number = whole_number(value, least, most);
  if (!number) {
    refuse_options(
        text(option, " expects a whole number from ", least, " to ", most, ", found \"", value, "\""));
  }
  return *number;
}

std::chrono::milliseconds duration(std::string const& option, std::string const& value) {
  constexpr double kMost = 86400.0;
  double number = 0.0;
  char const* end = value.data() + value.size();
  auto const [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc{} || stop != end || !(number >= 0.0 && number <= kMost)) {
    refuse_options(text(option, " expects seconds from 0 to ", kMost, ", found \"", value, "\""));
  }
  return std::chrono::milliseconds(std::llround(number * 1000.0));
}

void read_tee(std::string const& value, Options& options) {
  static constexpr std::array<std::array<char const*, 2>, 4> kWords{
      {{"0", "none"}, {"1", "out"}, {"2", "err"}, {"3", "both"}}};
  for (unsigned bits = 0; bits < kWords.size(); ++bits) {
    if (value == kWords[bits][0] || value == kWords[bits][1]) {
      options.show_stdout = (bits & 1U) != 0;
      options.show_stderr = (bits & 2U) != 0;
      return;
    }
  }
  refuse_options("--tee expects none, out, err, both, or 0, 1, 2, 3, found \"" + value + "\"");
}

void refuse_both(po::variables_map const& given, char const* one, char const* other, char const* why) {
  if (given.count(one) != 0 && given.count(other) != 0) {
    refuse_options(text("--", one, " and --", other, " contradict each other: ", why));
  }
}

void read_engine(po::variables_map const& given, Options& options) {
  refuse_both(given, "hostfile", "host", "both name the hosts");
  auto const value = [&](char const* name) { return given[name].as<std::string>(); };
  if (given.count("nnodes") != 0) options.nnodes = number_of("--nnodes", value("nnodes"), 1, kMaxRanks);
  bool const in_torchruns_words = given.count("nproc-per-node") != 0 || given.count("standalone") != 0;
  char const* hosts = nullptr;
  for (char const* const name : {"hostfile", "host", "nnodes"}) {
    if (given.count(name) != 0) hosts = name;
  }
  bool const one_by_count = given.count("hostfile") + given.count("host") == 0 && options.nnodes == 1;
  if (in_torchruns_words && one_by_count) {  // there it means this host
    hosts = nullptr;
    options.nnodes.reset();
  }
  if (hosts != nullptr) options.engine = Engine::mpi;
  if (given.count("engine") != 0) {
    std::string const engine = value("engine");
    if (engine != "local" && engine != "mpi")
      refuse_options("--engine expects local or mpi, found \"" + engine + "\"");
    if (engine == "local" && hosts != nullptr) {
      refuse_options(text("--engine local and --", hosts,
                          " contradict each other: the local engine starts ranks on this "
                          "host only"));
    }
    if (engine == "mpi") options.engine = Engine::mpi;
  }
  if (given.count("hostfile") != 0) options.hostfile = value("hostfile");
  if (given.count("host") != 0) options.host = value("host");
  if (given.count("standalone") != 0 && options.engine == Engine::mpi) {
    refuse_options(text("--standalone and --", hosts != nullptr ? hosts : "engine mpi",
                        " contradict each other: --standalone is of this host alone"));
  }
}

void read_per_node(po::variables_map const& given, Options& options) {
  if (given.count("nproc-per-node") == 0) return;
  for (char const* other : {"gpus", "cpus", "virtual"}) {
    refuse_both(given, "nproc-per-node", other, "both say which ranks a host has");
  }
  auto const value = given["nproc-per-node"].as<std::string>();
  if (value == "gpu") {
    options.gpus = "all";
  } else if (value == "cpu") {
    options.per_node = PerNode::cores;
  } else if (value == "auto") {
    options.per_node = PerNode::cores_without_gpus;
  } else if (std::all_of(value.begin(), value.end(),
                         [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; })) {
    refuse_options("--nproc-per-node expects a number, gpu, cpu or auto, found \"" + value + "\"");
  } else {
    options.per_node = PerNode::count;
    options.ranks_per_node = number_of("--nproc-per-node", value, 1, kMaxRanks);
  }
}

/// --check and --list-devices are of this host, and of no program.
void judge_look(po::variables_map const& given, Options const& options, std::string const& name) {
  refuse_both(given, "check", "list-devices", "--check lists the GPUs too");
  refuse_both(given, name.c_str(), "dry-run", "one looks at the machine, the other prints a job's plan");
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

po::variables_map read(std::vector<std::string> const& words, po::options_description const& description) {
  po::variables_map given;
  try {
    namespace style = po::command_line_style;
    int const chosen = style::unix_style & ~style::allow_guessing;
    po::store(po::command_line_parser(words).options(description).style(chosen).run(), given);
  } catch (po::error const& error) {
    refuse_options(error.what());
  }
  return given;
}

}  // namespace

void refuse_options(std::string const& message) {
  throw ExitError(exit_code::kUsage, message + "\n  try: ddp-launch --help");
}

std::optional<int> whole_number(std::string_view words, int least, int most) {
  int number = 0;
  char const* const end = words.data() + words.size();
  auto const [stop, error] = std::from_chars(words.data(), end, number);
  if (error != std::errc{} || stop != end || number < least || number > most) return std::nullopt;
  return number;
}

Options parse_options(std::span<std::string const> arguments) {
  auto const description = described_options();
  Split parts = split(arguments, description);
  auto const given = read(parts.options, description);
  auto const value = [&](char const* name) { return given[name].as<std::string>(); };

  Options options;
  options.help = given.count("help") != 0;
  options.version = given.count("version") != 0;
  options.command = std::move(parts.command);
  if (options.help || options.version) return options;

  refuse_both(given, "gpus", "cpus", "ranks of one job are all of one kind");
  refuse_both(given, "virtual", "cpus",
              "--virtual puts several ranks on each GPU; CPU ranks share the processor anyway, so give their "
              "number with --cpus alone");
  refuse_both(given, "log-dir", "no-log-files", "one asks for files, the other for none");
  refuse_both(given, "quiet", "tee", "--quiet shows nothing of the ranks");
  refuse_both(given, "quiet", "only-rank", "--quiet shows nothing of the ranks");

  read_engine(given, options);
  read_per_node(given, options);
  if (given.count("gpus") != 0) options.gpus = value("gpus");
  if (given.count("cpus") != 0) options.cpus = number_of("--cpus", value("cpus"), 1, kMaxRanks);
  if (given.count("virtual") != 0) {
    options.ranks_per_device = number_of("--virtual", value("virtual"), 1, kMaxRanks);
  }
  options.affinity = given.count("no-affinity") == 0;
  if (given.count("log-dir") != 0) options.log_dir = value("log-dir");
  options.log_files = given.count("no-log-files") == 0;
  if (given.count("tee") != 0) read_tee(value("tee"), options);
  if (given.count("only-rank") != 0) {
    options.only_rank = Rank{number_of("--only-rank", value("only-rank"), 0, kMaxRanks - 1)};
  }
  options.prefix = given.count("no-prefix") == 0;
  options.quiet = given.count("quiet") != 0;
  options.timestamps = given.count("timestamps") != 0;
  options.line_buffering = given.count("no-line-buffering") == 0;
  if (given.count("events") != 0) options.events = value("events");
  options.module = given.count("module") != 0;
  if (given.count("failure-grace") != 0) {
    options.failure_grace = duration("--failure-grace", value("failure-grace"));
  }
  if (given.count("grace") != 0) options.grace = duration("--grace", value("grace"));
  if (given.count("max-restarts") != 0) {
    options.max_restarts = number_of("--max-restarts", value("max-restarts"), 0, kMaxRestarts);
  }
  options.dry_run = given.count("dry-run") != 0;
  options.check = given.count("check") != 0;
  options.json = given.count("json") != 0;
  options.list_devices = given.count("list-devices") != 0;
  if (options.check || options.list_devices) {
    judge_look(given, options, options.check ? "check" : "list-devices");
    return options;
  }
  if (options.json) refuse_options("--json is of --check and --list-devices");
  if (options.command.empty() && options.module)
    refuse_options("-m expects a module's name behind the options");
  if (options.command.empty())
    refuse_options("no program given; expected: ddp-launch [options] [--] program [arguments…]");
  if (options.command.front().empty()) refuse_options("the program's name is an empty word");
  return options;
}

std::string help_text() {
  std::ostringstream out;
  out << "Starts one process per GPU (or N CPU processes) of a program, watches them, and says what went "
         "wrong.\n\n"
      << described_options()
      << "\n"
         "Environment of each rank: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, "
         "GROUP_WORLD_SIZE,\n"
         "MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*, DDP_JOB_ID, DDP_GENERATION, DDP_CONTROL, "
         "DDP_ERROR_FILE;\n"
         "PYTHONUNBUFFERED and OMP_NUM_THREADS where they are unset. GPU ranks: CUDA_VISIBLE_DEVICES as "
         "UUIDs, "
         "DDP_VIRTUAL_DEVICES with --virtual,\n"
         "NCCL_SOCKET_IFNAME=lo and NCCL_RAS_ENABLE=0 where they are unset.\n"
         "Exit code: the first failed rank's own, 128 + its signal; 64 wrong options, 69 no such device, or "
         "a failed --check,\n"
         "73 --log-dir cannot be made, 75 worth a retry (a full GPU too), 126 not executable, 127 program "
         "not found.\n";
  return std::move(out).str();
}

}  // namespace ddp::launcher

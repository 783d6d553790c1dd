#include "launcher/options/description.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>

#include "core/ascii.hpp"
#include "core/parse_number.hpp"
#include "ddp/core/text.hpp"

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

/// What most options take.
struct Section : OptionGroup {
  explicit Section(char const* heading) : OptionGroup{heading, {}} {}

  void words(char const* names, char const* value, std::function<void(std::string const&)> const& set,
             char const* help) {
    options.add_options()(names, po::value<std::string>()->value_name(value)->notifier(set), help);
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
    options.add_options()(
        names, po::value<bool>()->zero_tokens()->notifier([&place, set](bool) { place = set; }), help);
  }
};

}  // namespace

std::vector<OptionGroup> described_options(Options& to) {
  Section ranks("Ranks");
  ranks.count("cpus", "N", 1, kMaxRanks, to.cpus,
              "Start N CPU ranks, with several hosts on each; they see no GPU (default where no GPU is "
              "visible: one per physical core, at most 2).");
  ranks.words(
      "gpus", "LIST|all", to.gpus,
      "Start one rank per GPU of LIST, in that order (default: all that CUDA_VISIBLE_DEVICES leaves). "
      "LIST has indices into those, UUIDs or MIG ids, separated by commas.");
  ranks.count("virtual", "N", 1, kMaxRanks, to.ranks_per_device,
              "Start N ranks on each GPU, which share it. Where no GPU is visible, start N CPU ranks, each "
              "with N CPU devices.");
  ranks.words(
      "nproc-per-node", "N|gpu|cpu|auto", [&](auto const& value) { read_per_node(value, to); },
      "As torchrun's: N ranks on each host, on GPUs where any is visible; gpu: one per GPU; cpu: one CPU "
      "rank per core; auto: one per GPU, without GPUs one per core.");
  ranks.options.add_options()("standalone", "As torchrun's: on this host only, which is the default.");
  ranks.flag("no-affinity", to.affinity, false,
             "Let every rank use every core (default: those near its GPU, shared with its neighbours).");
  Section program("Program");
  program.flag("module,m", to.module, true,
               "The program is a module of Python's, as after python3 -m. (Without it, a program whose name "
               "ends in .py is run with python3 -u.)");
  Section hosts("Hosts");
  hosts.words(
      "engine", "local|mpi", [&](auto const& value) { read_engine(value, to); },
      "Who starts the ranks: ddp-launch itself, on this host, or Open MPI's mpirun (default: local; mpi with "
      "--hostfile, --host or --nnodes).");
  hosts.words("hostfile", "FILE", to.hostfile,
              "Start ranks on the hosts of FILE, which has lines such as \"node7 slots=4\".");
  hosts.words("host", "LIST", to.host, "Start ranks on the hosts of LIST, such as node7:4,node8:4.");
  hosts.count(
      "nnodes", "N", 1, kMaxRanks, to.nnodes,
      "Start ranks on the first N of these hosts; inside a job of Slurm or PBS on N of its hosts, with "
      "--cpus or --gpus.");
  auto const add_exports = [&](Words const& all) {
    std::ranges::transform(all, std::back_inserter(to.exports), read_export);
  };
  hosts.options.add_options()(
      "export,x", po::value<Words>()->value_name("NAME[=VALUE]")->notifier(add_exports),
      "Set a variable for every rank; without a value, pass ddp-launch's own on to other hosts. May be "
      "repeated.");
  Section output("Output");
  output.words("log-dir", "DIR", to.log_dir,
               "Write the output of rank R to DIR/rankR.out and DIR/rankR.err (default: "
               "ddp-logs/PROGRAM-DATE-PID).");
  output.flag("no-log-files", to.log_files, false, "Write no files.");
  output.words(
      "tee", "none|out|err|both", [&](auto const& value) { read_tee(value, to); },
      "Which streams of the ranks also go to the terminal (default: both). 0 to 3 mean the same, as with "
      "torchrun.");
  output.count("only-rank", "R", 0, kMaxRanks - 1, to.only_rank,
               "Show only rank R on the terminal; the files have all.");
  output.flag("terminal", to.terminal, true,
              "Give rank 0, or that of --only-rank, a terminal where ddp-launch has one. A job's only rank "
              "always has it.");
  output.flag("no-prefix", to.prefix, false, "Show the ranks' lines without [rank] in front.");
  output.flag("timestamps", to.timestamps, true,
              "Put the time at which it came in front of each line of the ranks, in the files too.");
  output.flag(
      "no-line-buffering", to.line_buffering, false,
      "Leave it to the programs when they write what they print (default: each line at once, in Python "
      "and C).");
  output.words("events", "FILE", to.events,
               "Append what happens to the job to FILE, for machines: a JSON object a line.");
  output.flag("quiet", to.quiet, true, "Show nothing on the terminal unless something fails.");
  Section watching("Watching");
  watching.time("failure-grace", to.failure_grace,
                "How long the other ranks have to end by themselves after the first failure, before they are "
                "killed (default: 5).");
  watching.time(
      "grace", to.grace,
      "How long the ranks have to end after a signal was passed on, before they are killed (default: "
      "30). A second Ctrl-C kills them at once.");
  watching.count(
      "max-restarts", "N", 0, kMaxRestarts, to.max_restarts,
      "Start the whole group again when it failed, at most N times (default: 0). Two restarts in a "
      "row that end before their first step are the last.");
  watching.flag("survive", to.survive, true,
                "When a rank is lost the others go on in their processes, if the program can "
                "(World::rebuild()). Only for ranks of one host.");
  watching.count("min-ranks", "N", 1, kMaxRanks, to.min_ranks,
                 "With --survive: go on as long as N ranks are left (default: 1). With fewer the job has "
                 "failed.");
  watching.count("replace", "N", 0, kMaxRestarts, to.replacements,
                 "With --survive: start a new process for a lost rank, at most N in all (default: 0). The "
                 "others take it in when it is ready.");
  Section other("Other");
  other.flag("dry-run", to.dry_run, true,
             "Print the plan (ranks, devices, cores, environment, command) and start nothing.");
  other.flag("check", to.check, true,
             "Look whether this machine is fit for the ranks of a job, with --gpus, --cpus or --virtual for "
             "those, and start nothing.");
  other.flag("list-devices", to.list_devices, true,
             "Print which device is which, physical and for ranks, with versions.");
  other.flag("json", to.json, true, "Print what --check or --list-devices finds as JSON.");
  other.flag("help,h", to.help, true, "Print this text.");
  other.flag("version", to.version, true, "Print the version.");
  return {ranks, program, hosts, output, watching, other};
}

}  // namespace ddp::launcher

// What the command line asks for.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/ids.hpp"

namespace ddp::launcher {

/// More ranks on one host are taken for a typing error.
inline constexpr int kMaxRanks = 1024;

inline constexpr int kMaxRestarts = 1000000;

/// What starts the ranks: ddp-launch itself, on this host, or mpirun.
enum class Engine { local, mpi };

/// What --nproc-per-node asks for that only the machine can tell.
enum class PerNode {
  unset,
  count,               ///< so many ranks: Options::ranks_per_node
  cores,               ///< a CPU rank for each core
  cores_without_gpus,  ///< a rank for each visible GPU, or else for each core
};

/// Throws ExitError(64): `message`, and that --help helps.
[[noreturn]] void refuse_options(std::string const& message);

/// nullopt for what is no whole number, or one out of range.
[[nodiscard]] std::optional<int> whole_number(std::string_view words, int least, int most);

/// -x NAME[=VALUE]: a variable for all ranks, also those of other hosts.
struct Export {
  std::string name;
  std::optional<std::string> value;  ///< nullopt: as it is here
};

struct Options {
  Engine engine = Engine::local;
  std::optional<std::string> hostfile;  ///< of the mpi engine, as is what follows
  std::optional<std::string> host;      ///< "node7:4,node8"
  std::optional<int> nnodes;            ///< 1 … kMaxRanks
  std::vector<Export> exports;          ///< -x, of either engine
  std::optional<std::string> gpus;      ///< as given: checked by select_gpus(), which knows what is visible
  std::optional<int> cpus;              ///< 1 … kMaxRanks
  int ranks_per_device = 1;             ///< --virtual
  PerNode per_node = PerNode::unset;    ///< see choose_gpus()
  std::optional<int> ranks_per_node;    ///< 1 … kMaxRanks, on each host

  bool affinity = true;  ///< ranks keep to cores near their GPU

  std::optional<std::string> log_dir;  ///< nullopt: the default directory
  bool log_files = true;
  bool show_stdout = true;  ///< --tee: which streams of the ranks go to the terminal too
  bool show_stderr = true;
  std::optional<Rank> only_rank;  ///< the only rank whose output goes to the terminal
  bool terminal = false;          ///< the leader of several ranks has a terminal where ddp-launch has one
  bool prefix = true;
  bool quiet = false;
  bool timestamps = false;  ///< lines of the ranks begin with the time
  bool line_buffering = true;
  std::optional<std::string> events;  ///< the file that gets what happens as JSON lines

  std::chrono::milliseconds failure_grace{5000};
  std::chrono::milliseconds grace{30000};
  int max_restarts = 0;  ///< 0 … kMaxRestarts
  bool survive = false;  ///< the others go on when a rank is lost
  int replacements = 0;  ///< how many new processes may stand for lost ranks
  int min_ranks = 1;     ///< as long as so many are left; 1 … kMaxRanks

  bool dry_run = false;
  bool check = false;         ///< look at the machine, start nothing
  bool list_devices = false;  ///< print the GPUs, start nothing
  bool json = false;          ///< what either finds as JSON
  bool help = false;
  bool version = false;

  bool module = false;  ///< the program is a module of Python's
  std::vector<std::string>
      command;  ///< program and arguments; empty only with help, version, check or list_devices
};

/// Reads the arguments after argv[0]. The program is the first word that is no option, or the word after
/// "--"; what follows is left to it. Throws ExitError(64) for unknown, repeated, contradictory or incomplete
/// options and values out of range.
[[nodiscard]] Options parse_options(std::span<std::string const> arguments);

}  // namespace ddp::launcher

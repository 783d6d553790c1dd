#include "launcher/options/help.hpp"

#include <algorithm>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <utility>

#include "ddp/core/text.hpp"
#include "launcher/options/description.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {

std::vector<HelpSection> option_help() {
  Options unused;
  std::vector<HelpSection> sections;
  for (auto const& group : described_options(unused)) {
    HelpSection& section = sections.emplace_back(HelpSection{group.title, {}});
    for (auto const& option : group.options.options()) {
      HelpEntry& entry = section.entries.emplace_back();
      auto const letter =
          option->canonical_display_name(boost::program_options::command_line_style::allow_dash_for_short);
      if (letter.starts_with('-')) entry.names.push_back(letter);
      entry.names.push_back("--" + option->long_name());
      entry.value = option->format_parameter();
      entry.words = option->description();
    }
  }
  return sections;
}

std::vector<HelpSection> environment_help() {
  return {
      {"Environment of ddp-launch",
       {{{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}, "Which GPUs there are, and in which order."},
        {{"DDP_TIMEOUT"}, "The ranks' deadline in seconds (default: 600)."},
        {{"DDP_LOG"}, "error, warning (default), info or debug: what ddp-launch and the ranks log."},
        {{"TMPDIR"}, "Where the control directory is made (default: /tmp)."},
        {{"PATH"}, "Where the program, python3 and mpirun are looked for."}}},
      {"Environment of each rank",
       {{{"RANK", "WORLD_SIZE"}, "The rank's number, and how many ranks there are."},
        {{"LOCAL_RANK", "LOCAL_WORLD_SIZE"}, "The same on its host."},
        {{"GROUP_RANK", "GROUP_WORLD_SIZE"}, "The host's number, and how many hosts there are."},
        {{"MASTER_ADDR", "MASTER_PORT"},
         "127.0.0.1 or the first host, and a port for programs that open one."},
        {{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"},
         "The job's id, how often the group was restarted, and N of --max-restarts."},
        {{"TORCHELASTIC_ERROR_FILE"}, "Where PyTorch may write the exception that ends the rank."},
        {{"DDP_JOB_ID"}, "The job's id: PROGRAM-DATE-PID."},
        {{"DDP_GENERATION"}, "How often the group was restarted."},
        {{"DDP_REPLACEMENT"}, "How often the rank's process was replaced; unset in its first one."},
        {{"DDP_SURVIVE"}, "1 with --survive."},
        {{"DDP_CONTROL", "DDP_INVITATION"},
         "Where ddp-launch listens to the rank, on one host and on several."},
        {{"DDP_ERROR_FILE"}, "Where the rank may write {\"code\": ..., \"message\": ...} before it fails."},
        {{"DDP_FLIGHT"}, "Memory of ddp-launch in which the rank records its last collectives."},
        {{"CUDA_VISIBLE_DEVICES"},
         "UUIDs of all ranks' GPUs, or the rank's own MIG instance; empty for CPU ranks."},
        {{"DDP_VIRTUAL_DEVICES"}, "N of --virtual N above 1."},
        {{"NCCL_SOCKET_IFNAME", "NCCL_RAS_ENABLE"},
         "lo and 0 for GPU ranks of one host, each where it was unset."},
        {{"OMP_NUM_THREADS"}, "The allowed cores divided by the ranks, where it was unset."},
        {{"COLUMNS", "LINES"}, "The size of ddp-launch's terminal, each where it was unset."},
        {{"DDP_TERMINAL"}, "1 for rank 0 if its output is shown on a terminal."},
        {{"PYTHONUNBUFFERED", "LD_PRELOAD", "ASAN_OPTIONS", "DDP_STDOUT"},
         "What makes programs write each line at once; see --no-line-buffering."}}},
  };
}

HelpSection exit_code_help() {
  namespace code = exit_code;
  auto const one = [](auto const& name, char const* words) { return HelpEntry{{text(name)}, words}; };
  return {
      "Exit codes",
      {one(0, "Every rank exited with 0; with --survive at least as many as --min-ranks says."),
       one("N", "The code of the rank that failed first."),
       one(text(code::kSignalBase, "+S"),
           "Signal S ended the rank that failed first, or was passed on and not every rank exited with 0."),
       one(code::kEarlyLeave,
           "Also: a rank left the group before the others, or was stopped when they had ended."),
       one(code::kUsage, "Wrong options, or one ddp-launch in each task of srun or mpirun."),
       one(code::kNoDevice, "A device is not there, or --check found something that fails."),
       one(code::kInternal, "A defect of ddp-launch."),
       one(code::kCannotCreate,
           "The folder of --log-dir, the file of --events or the control directory cannot be made, or is "
           "not this user's alone."),
       one(code::kOutputLost, "The job was fine, but not all of its output could be written."),
       one(code::kRetry, "No process, memory or file descriptor is left, or a GPU is full: worth a retry."),
       one(code::kNotExecutable, "The program cannot be executed."),
       one(code::kNotFound, "The program is not there.")}};
}

std::vector<std::string> wrapped(std::string_view words, std::size_t width) {
  std::vector<std::string> lines;
  for (std::size_t blank = 0; words.size() > width; words.remove_prefix(blank + 1)) {
    blank = words.rfind(' ', width);
    if (blank == std::string_view::npos) break;
    lines.emplace_back(words.substr(0, blank));
  }
  lines.emplace_back(words);
  return lines;
}

std::string help_text() {
  constexpr std::size_t kWidth = 80;
  constexpr std::size_t kIndent = 24;
  Classic<std::ostringstream> out;
  out << "Usage: ddp-launch [options] [--] program [arguments…]\n\n"
         "Starts one process per GPU (or N CPU processes) of a program, watches them, and\n"
         "says what went wrong.\n";
  auto sections = option_help();
  sections.push_back(exit_code_help());
  std::ranges::move(environment_help(), std::back_inserter(sections));
  for (HelpSection const& section : sections) {
    out << "\n" << section.title << ":\n" << std::left;
    for (HelpEntry const& entry : section.entries) {
      std::string margin = "  " + join(entry.names, ", ");
      if (!entry.value.empty()) margin += " " + entry.value;
      if (margin.size() + 2 > kIndent) {
        out << margin << "\n";
        margin.clear();
      }
      for (std::string const& line : wrapped(entry.words, kWidth - kIndent)) {
        out << std::setw(kIndent) << margin << line << "\n";
        margin.clear();
      }
    }
  }
  return std::move(out).str();
}

}  // namespace ddp::launcher

#include "launcher/check/machine_check.hpp"

#include <algorithm>

#include "ddp/core/text.hpp"
#include "launcher/process/exit_code.hpp"

namespace ddp::launcher {
namespace {

/// Explains why there is no GPU for the job, and whether that is a fault.
Check check_absence(Options const& options, Machine const& machine) {
  Check check{.name = "GPUs"};
  if (options.cpus || options.per_node == PerNode::cores) {
    check.found = "not asked for: --cpus";
  } else if (!machine.gpu_problem.empty()) {
    check.found = machine.gpu_problem;
    check.judge(
        Verdict::failed, "a driver that lists its GPUs",
        "see whether nvidia-smi works; after an update of the driver its kernel module must be loaded anew; "
        "--cpus N for CPU ranks");
  } else if (!machine.gpus.empty()) {
    check.found = text("CUDA_VISIBLE_DEVICES=", machine.cuda_visible_devices.value_or(""), " hides all ",
                       machine.gpus.size(), ": ranks run on the CPU");
  } else {
    check.found = machine.driver_version.empty()
                      ? "none, and no NVIDIA driver: ranks run on the CPU"
                      : text("none listed by driver ", machine.driver_version, ": ranks run on the CPU");
  }
  return check;
}

/// Judges GPUs that fell off the bus while others answer. Only a warning if the options name or count GPUs,
/// since those are all there.
Check check_driver(Options const& options, Machine const& machine) {
  Check check{.name = "driver", .found = machine.driver_version};
  if (machine.gpu_problem.empty()) return check;
  check.found += "; " + machine.gpu_problem;
  return check.judge(
      options.gpus || options.per_node == PerNode::count ? Verdict::warning : Verdict::failed,
      "an answer from every GPU",
      "look for Xid in dmesg; the GPU may need a reset or a reboot. --gpus LIST leaves it out");
}

void add_gpu_checks(Options const& options, Machine const& machine, MachineFacts const& facts,
                    CheckedJob& job, std::vector<Check>& checks) {
  GpuChoice choice;
  try {
    choice = named_gpus(options, machine);
  } catch (ExitError const& error) {
    if (error.exit_code() != exit_code::kNoDevice) throw;
    checks.push_back({.name = "GPUs",
                      .verdict = Verdict::failed,
                      .found = error.what(),
                      .expected = "every GPU of the list",
                      .advice = "ddp-launch --check without --gpus shows those that are visible"});
    return;
  }
  job.gpus = std::move(choice.gpus);
  job.ranks = choice.cpu_ranks;
  if (job.gpus.empty()) {
    checks.push_back(check_absence(options, machine));
    return;
  }
  job.ranks = static_cast<int>(job.gpus.size()) * options.ranks_per_device;
  job.uses_nccl = job.ranks > 1 && cards_of(job, machine).size() == static_cast<std::size_t>(job.ranks);
  checks.push_back(check_driver(options, machine));
  checks.push_back(check_cuda(machine, facts.built_with));
  for (std::string const& warning : choice.warnings) {
    if (machine.gpu_problem.empty() || !warning.starts_with(machine.gpu_problem)) {
      checks.push_back({.name = "CUDA_VISIBLE_DEVICES",
                        .verdict = Verdict::warning,
                        .found = warning,
                        .expected = "a list that means the same to everyone",
                        .advice = "name GPUs by UUID"});
    }
  }
  for (GpuId const& gpu : job.gpus) checks.push_back(check_gpu(find_gpu(machine.gpus, gpu).value()));
  checks.push_back(check_peers(job, machine));
}

}  // namespace

std::vector<Check> check_machine(Options const& options, Machine const& machine, MachineFacts const& facts) {
  std::vector<Check> checks;
  CheckedJob job;
  add_gpu_checks(options, machine, facts, job, checks);
  bool const impossible = !checks.empty() && checks.back().verdict == Verdict::failed;
  if (job.gpus.empty() && options.ranks_per_device > 1 && !impossible) {
    throw ExitError(exit_code::kUsage, text("--virtual ", options.ranks_per_device,
                                            " puts several ranks on each GPU, and these are CPU ranks"));
  }
  checks.push_back(check_linux(facts));
  checks.push_back(check_cores(job, machine));
  checks.push_back(check_shared_memory(job, facts));
  checks.push_back(check_locked_memory(facts));
  checks.push_back(check_open_files(job, facts));
  checks.push_back(check_nccl(job, facts));
  checks.push_back(check_mpi(facts));
  return checks;
}

int exit_code_of(std::span<Check const> checks) {
  int code = 0;
  for (Check const& check : checks) {
    if (check.verdict != Verdict::failed) continue;
    if (!check.worth_retry) return exit_code::kNoDevice;
    code = exit_code::kRetry;
  }
  return code;
}

}  // namespace ddp::launcher

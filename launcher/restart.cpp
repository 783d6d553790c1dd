#include "launcher/restart.hpp"

#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <optional>

#include "core/system/file_descriptor.hpp"
#include "core/system/signal_name.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/text.hpp"
#include "launcher/plan/gpu_choice.hpp"
#include "launcher/plan/machine.hpp"
#include "launcher/process/exit_code.hpp"
#include "launcher/process/job_control.hpp"
#include "launcher/report/outcome.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstDelay{1000};
constexpr milliseconds kLongestDelay{30000};

// Waits for a signal that ends the job while no rank runs; nullopt after `delay`.
std::optional<int> signal_within(milliseconds delay) {
  sigset_t signals = watched_signals();
  for (int const other : {SIGCHLD, SIGUSR1, SIGUSR2}) sigdelset(&signals, other);
  Deadline const deadline = Deadline::after(delay);
  for (;;) {
    auto const left = deadline.remaining().count();
    timespec const time{static_cast<time_t>(left / 1000), static_cast<long>(left % 1000) * 1'000'000};
    int const signal = sigtimedwait(&signals, nullptr, &time);
    if (signal > 0) return signal;
    if (errno != EINTR) return std::nullopt;
  }
}

/// Prints the report, with `last_words` as its last line if there are any. Returns when the readers have
/// taken all, when a reader has taken nothing for long, or on a signal.
void print_report(JobOutcome const& job, std::string const& last_words, Console& console) {
  sigset_t signals = watched_signals();
  sigdelset(&signals, SIGCHLD);
  FileDescriptor const interrupt(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  std::string words = report(job);
  if (!last_words.empty()) words += "[ddp-launch] " + last_words + "\n";
  // The report comes last, but a slow reader of stdout must not keep the report from stderr.
  bool const report_first = console.only_stdout_waits();
  if (report_first && !words.empty()) console.print(words);
  console.finish(interrupt.get());
  if (!report_first && !words.empty()) {
    console.print(words);
    console.finish(interrupt.get());
  }
}

}  // namespace

GenerationEnd summarize(JobOutcome const& job, milliseconds lived) {
  GenerationEnd end;
  end.lived = lived;
  bool exec_failed = false;
  for (RankOutcome const& rank : job.ranks) {
    end.all_gone = end.all_gone && (rank.ended || (rank.pid < 0 && !rank.unheard));  // or never was there
    end.made_step = end.made_step || rank.progress.has_value();
    end.joined = end.joined || rank.joined;
    exec_failed = exec_failed || rank.exec_error != 0;
  }
  end.failed =
      !survived(job) && first_failure(job.ranks).has_value() && job.forwarded_signal == 0 && !exec_failed;
  return end;
}

RestartPolicy::Decision RestartPolicy::after(GenerationEnd const& end) {
  if (!end.failed) return {};
  if (restarts_ == 0 && left_ == 0) return {};
  if (!end.all_gone) return {false, {}, "no restart: processes of the old ranks may still be there"};
  bool const made_step = end.made_step || (!end.joined && end.lived >= kLongWithoutJoining);
  without_step_ = made_step || restarts_ == 0 ? 0 : without_step_ + 1;
  if (without_step_ >= kMostWithoutStep) {
    return {false, {}, text("no restart: ", without_step_, " in a row ended before their first step")};
  }
  if (left_ == 0)
    return {false, {}, text("no restart is left: ", restarts_, " of ", restarts_, " were used")};
  quick_ = end.lived >= kUndisturbed ? 0 : quick_ + 1;
  milliseconds delay{0};  // the first at once
  if (quick_ >= 2) delay = std::min(kFirstDelay * (1 << std::min(quick_ - 2, 10)), kLongestDelay);
  --left_;
  ++restarts_;
  return {true, delay, {}};
}

int run_job(Plan plan, Options const& options, rlimit const& open_files, Console& console, JobFiles& files) {
  files.events.start(plan);
  RestartPolicy policy(plan.max_restarts);
  for (;; ++plan.generation) {
    auto const began = Deadline::Clock::now();
    JobOutcome job = Supervisor(plan, options, open_files, console, files).run();
    auto const lived = std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - began);
    auto decision = policy.after(summarize(job, lived));
    if (!decision.restart) {
      job.output_lost = console.output_lost();
      files.events.end(job, decision.why_not);
      print_report(job, decision.why_not, console);
      return job_exit_code(job);
    }
    files.events.restart(job, plan.generation + 1, decision.delay);
    console.print(report(job));
    console.say(
        text("restart ", plan.generation + 1, " of ", plan.max_restarts,
             decision.delay.count() > 0 ? text(", in ", seconds(decision.delay), " s") : std::string()));
    if (auto const signal = signal_within(decision.delay)) {
      std::string const words = text("the job was stopped by ", signal_name(*signal), " before the restart");
      console.say(words);
      files.events.end(exit_code::kSignalBase + *signal, words);
      return exit_code::kSignalBase + *signal;
    }
    if (plan.ranks.front().device.kind == DeviceKind::cuda) {
      await_free_gpus([&] { static_cast<void>(choose_gpus(options, detect_machine(true))); },
                      kTimeoutAtRestart);
    }
  }
}

}  // namespace ddp::launcher

#include "hello_all_reduce/start_report.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/text.hpp"

namespace hello {
namespace {

using Seconds = std::chrono::duration<double>;

// How long ago a process was started; 0 if it is gone. proc(5): field 22 counts clock ticks since boot.
double age(pid_t process) {
  std::ifstream file(ddp::text("/proc/", process, "/stat"));
  std::string stat;
  std::getline(file, stat);
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  constexpr int kStart = 22 - 2;  // the first two are cut off
  std::string field;
  for (int i = 0; i < kStart; ++i) fields >> field;
  timespec now{};
  if (!fields || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  double const started = std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return std::max(0.0, static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started);
}

// By what started this rank; until now.
double launcher_time() {
  bool const alone = ddp::RankInfo::from_environment().source == ddp::RankSource::alone;
  return age(alone ? getpid() : getppid());
}

}  // namespace

struct StartReport::Parts {
  double total, launcher, control, device, communicator, all_reduce;
};

StartReport::StartReport() : launcher_(launcher_time()), begin_(Clock::now()), done_(begin_) {}

StartReport::Parts StartReport::parts(ddp::World const& world) const {
  double const control = Seconds(world.start_times().control).count();
  double const device = Seconds(world.start_times().device).count();
  double const communicator = Seconds(world.start_times().communicator).count();
  double const here = Seconds(done_ - begin_).count();
  return {launcher_ + here, launcher_, control, device, communicator, here - control - device - communicator};
}

std::string StartReport::describe(ddp::World const& world) const {
  Parts const all = parts(world);
  return ddp::text(std::fixed, std::setprecision(3), all.total,
                   " s from the command to the first all-reduce: launcher ", all.launcher, ", control plane ",
                   all.control, ", ", ddp::to_string(world.device().kind), " ", all.device, ", ",
                   world.communicator().backend(), " ", all.communicator, ", all-reduce ", all.all_reduce);
}

bool StartReport::write(ddp::World const& world, std::filesystem::path const& file) const {
  Parts const all = parts(world);
  std::ofstream out(file);
  out << nlohmann::ordered_json{{"ranks", world.size()},
                                {"device", ddp::to_string(world.device().kind)},
                                {"backend", world.communicator().backend()},
                                {"total", all.total},
                                {"launcher", all.launcher},
                                {"control_plane", all.control},
                                {"device_start", all.device},
                                {"communicator", all.communicator},
                                {"first_all_reduce", all.all_reduce}}
             .dump(2)
      << '\n'
      << std::flush;
  return static_cast<bool>(out);
}

}  // namespace hello

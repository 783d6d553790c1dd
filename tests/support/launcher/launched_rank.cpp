// A rank that does what its test asks, under ddp-launch or mpirun, or alone: launched_rank RANK=ACTION… runs
// the action of its own rank, or that of "*".
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "comm/shm/communicator.hpp"
#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/parallel/world.hpp"

namespace {

using namespace std::chrono_literals;

std::shared_ptr<ddp::ControlPlane> join() {
  return ddp::connect_control_plane(ddp::RankInfo::from_environment(), ddp::Deadline::after(10s));
}

/// A step in which all ranks must take part.
int meet(ddp::ControlPlane& control, ddp::Deadline::Duration timeout) {
  try {
    control.barrier("meet", ddp::Deadline::after(timeout));
  } catch (ddp::Error const& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    control.report_error(failure_of(error));
    return 1;
  }
  control.leave();
  return 0;
}

/// Dies by `signal`, without a core file, once another rank is waiting for it.
void die_of(int signal) {
  prctl(PR_SET_DUMPABLE, 0);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

int list_devices() {
  for (ddp::LogicalDevice const& each : ddp::logical_devices()) {
    std::puts(ddp::text(each.device, " = ", each.uuid).c_str());
  }
  return 0;
}

/// Leaves its GPU less memory than a rank needs, until it is killed.
int fill_memory() {
  ddp::Device const gpu{ddp::DeviceKind::cuda,
                        ddp::DeviceIndex{ddp::RankInfo::from_environment().local_rank.value()}};
  constexpr std::size_t kLeft = std::size_t{256} << 20;
  std::size_t const free = ddp::memory_info(gpu).free.value;
  ddp::Tensor const full = ddp::zeros({free - std::min(free, kLeft)}, ddp::DType::u8, gpu);
  std::puts("filled");
  std::fflush(stdout);
  std::this_thread::sleep_for(60s);
  return 0;
}

/// Sends every other rank two notices, and hears theirs.
int send_notices(ddp::ControlPlane& control) {
  std::atomic<int> heard{0};
  auto const listening = control.listen("test", [&](ddp::Rank from, std::string_view bytes) {
    std::puts(ddp::text(control.rank(), " hears ", bytes, " from ", from).c_str());
    ++heard;
  });
  auto others = control.everyone();
  std::erase(others, control.rank());
  for (int number : {1, 2}) control.notify(others, "test", ddp::text(number, " of ", control.rank()));
  ddp::Deadline const give_up = ddp::Deadline::after(20s);
  while (heard < 2 * (control.size() - 1)) {
    if (give_up.expired()) return 1;
    std::this_thread::sleep_for(1ms);
  }
  return meet(control, 20s);
}

/// A program's usual beginning.
int show_world() {
  ddp::World const world = ddp::World::init();
  std::puts(ddp::text("rank ", world.rank(), " of ", world.size(), " on ", world.device(), ", ",
                      world.communicator().backend())
                .c_str());
  return 0;
}

/// The World is a local variable, so it is not left.
[[noreturn]] void exit_in_world() {
  ddp::World const world = ddp::World::init();
  world.barrier();
  std::exit(0);
}

std::optional<ddp::World> global_world;

/// exit() destroys the World. The others are served meanwhile, and hear that rank 0 leaves in order.
int keep_world_in_a_global() {
  global_world = ddp::World::init();
  global_world->barrier();
  if (global_world->rank() == ddp::Rank{0}) return 0;
  auto& control = global_world->control();
  ddp::Deadline const give_up = ddp::Deadline::after(20s);
  while (control.lost().empty() && !give_up.expired()) std::this_thread::sleep_for(1ms);
  auto const others = std::span(global_world->members()).subspan(1);
  static_cast<void>(control.all_gather("without rank 0", "", others, ddp::Deadline::after(20s)));
  for (ddp::Failure const& lost : control.lost()) std::puts(to_string(lost).c_str());
  return 0;
}

/// One after another. Each time another rank is late to let its World go.
int make_worlds() {
  for (int i = 0; i < 4; ++i) {
    ddp::World const world = ddp::World::init();
    world.barrier();
    if (world.rank().value() == i % world.size()) std::this_thread::sleep_for(500ms);
  }
  return 0;
}

/// Until all ranks are there.
int try_again() {
  for (int left = 20;; --left) try {
      static_cast<void>(ddp::World::init());
      return 0;
    } catch (ddp::CommError const& error) {
      std::fprintf(stderr, "%s\n", error.what());
      if (left == 0) throw;
    }
}

/// How a rank waits in shared memory.
int show_waiting() {
  ddp::World const world = ddp::World::init();
  auto const* const shm = dynamic_cast<ddp::ShmCommunicator const*>(&world.communicator());
  if (shm == nullptr) return 98;
  std::puts(ddp::text("rank ", world.rank(), shm->spins() ? " spins" : " sleeps").c_str());
  return 0;
}

int act(std::string_view action) {
  if (action == "exit") return 0;  // never joins
  if (action == "sleep") {
    std::this_thread::sleep_for(60s);
    return 0;
  }
  if (action == "exec") {  // a program that never joins and never comes back
    execlp("sleep", "sleep", "60", nullptr);
    return 97;
  }
  if (action == "list-devices") return list_devices();
  if (action == "fill-memory") return fill_memory();
  if (action == "world") return show_world();
  if (action == "exit-in-world") exit_in_world();
  if (action == "world-in-a-global") return keep_world_in_a_global();
  if (action == "worlds") return make_worlds();
  if (action == "try-again") return try_again();
  if (action == "waiting") return show_waiting();
  auto const control = join();
  if (action == "meet") return meet(*control, 20s);
  if (action == "meet-or-stay") {  // until the job is ended
    int const result = meet(*control, 20s);
    if (result != 0) std::this_thread::sleep_for(30s);
    return result;
  }
  if (action == "notices") return send_notices(*control);
  if (action == "stay") {
    std::puts("joined");
    std::fflush(stdout);
    std::this_thread::sleep_for(60s);
    return 0;
  }
  if (action == "meet-when-told") {  // by a file
    std::puts("joined");
    std::fflush(stdout);
    for (int nap = 0; ::access("go", F_OK) != 0 && nap < 3000; ++nap) std::this_thread::sleep_for(20ms);
    return meet(*control, 20s);
  }
  if (action == "meet-and-stop") {
    int const code = meet(*control, 20s);
    std::raise(SIGSTOP);
    return code;
  }
  if (action == "meet-briefly") return meet(*control, 500ms);
  if (action == "meet-within-2s") return meet(*control, 2s);
  if (action == "meet-late") {
    std::puts("comes later");
    std::fflush(stdout);
    for (int nap = 0; nap < 50; ++nap) std::this_thread::sleep_for(20ms);  // none ends while it is stopped
    return meet(*control, 2s);
  }
  if (action == "stop") std::raise(SIGSTOP);
  std::this_thread::sleep_for(200ms);  // the others are waiting in meet() by now
  if (action == "early-exit") _exit(0);
  if (action == "segv") die_of(SIGSEGV);
  if (action == "abort") std::abort();
  if (action == "kill") die_of(SIGKILL);
  if (action == "fork-and-kill") {
    if (::fork() == 0) {
      for (int stream : {0, 1, 2}) ::close(stream);
      ::sleep(20);
      _exit(0);
    }
    die_of(SIGKILL);
  }
  if (action == "mismatch") {
    control->report_progress({41});
    control->report_error(
        {.code = ddp::ErrorCode::mismatch, .detail = "shapes differ:\n[2] here, [3] on rank 0"});
    std::fputs("about to give up\n", stderr);
    _exit(5);
  }
  std::fprintf(stderr, "unknown action %s\n", std::string(action).c_str());
  return 96;
}

}  // namespace

int main(int argc, char** argv) {
  char const* rank = std::getenv("RANK");
  if (rank == nullptr) rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = "0";  // started by hand
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    std::size_t const equals = word.find('=');
    if (word.substr(0, equals) != rank && word.substr(0, equals) != "*") continue;
    try {
      return act(word.substr(equals + 1));
    } catch (std::exception const& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 95;
    }
  }
  return 94;
}

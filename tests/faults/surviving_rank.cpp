// A rank that trains until 400 steps are done, and goes on when others are lost, unless the second argument
// names it ("all", or a rank): then it does in step 20, or with the error, what the first one says.
#include <csignal>
#include <string>
#include <thread>

#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/memory.hpp"

namespace {

using namespace std::chrono_literals;

constexpr int kSteps = 400;

// Takes the loss for a mishap of one step.
void go_on_without_rebuild(ddp::World const& world, int step) {
  while (++step < kSteps) try {
      static_cast<void>(world.all_reduce_scalar(1));
    } catch (ddp::CommError const&) {
    }
}

int train(std::string const& fault, std::string const& who) {
  ddp::World world = ddp::World::init();
  if (world.is_newcomer() && fault == "other-program") return 0;
  bool const faulty = who == "all" || ddp::text(world.rank()) == who;
  bool const dies = (fault == "swallow" || fault == "other-program") && world.rank() == world.size() - 1;
  ddp::Tensor const weight = ddp::zeros({2000}, ddp::DType::f32, {});
  ddp::DistributedDataParallel ddp(world, {{"weight", weight, [](ddp::TensorView const&) {}, {}}});
  int step = 0;
  ddp::Replicated alike(world, {&step});
  while (step < kSteps) try {
      if (step == 20 && dies) ::raise(SIGKILL);
      if (step == 20 && faulty && world.membership() == 0) {
        if (fault == "alone") throw ddp::CommError(ddp::ErrorCode::timeout, "this rank lost its patience");
        if (fault == "never-comes") std::this_thread::sleep_for(30s);
      }
      if (fault == "other-program") std::this_thread::sleep_for(5ms);
      ddp.gradient_ready(0);
      ddp.synchronize();
      static_cast<void>(world.all_reduce_scalar(1));
      ++step;
    } catch (ddp::CommError const& error) {
      if (fault == "alone" && !faulty) throw;
      if (fault == "swallow" && faulty) {
        go_on_without_rebuild(world, step);
        return 0;
      }
      world.rebuild(error, alike);
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return argc == 3 ? train(argv[1], argv[2]) : 64; }

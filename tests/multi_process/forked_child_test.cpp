// A rank forks a helper that runs no other program, as loaders of data do: it has copies of all objects, and
// ends without speaking for its parent.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/thread_team.hpp"
#include "support/launcher/shell.hpp"
#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;

/// In global variables: exit() destroys them in the child too.
struct Globals {
  std::optional<ToyModel> model;
  std::optional<DistributedDataParallel> ddp;
  std::optional<ChromeTrace> trace;
  std::optional<ThreadTeam> team;
  std::shared_ptr<HostStream> stream;

  void end() {
    stream.reset();
    team.reset();
    trace.reset();
    ddp.reset();
    model.reset();
  }
};
Globals globals;

/// How a child ends that calls `end`; nullopt if it does not within 20 s.
std::optional<int> status_of_child(std::function<void()> const& end) {
  pid_t const child = ::fork();
  if (child == 0) {
    rlimit const none{};
    ::setrlimit(RLIMIT_CORE, &none);
    end();
    ::_exit(99);
  }
  auto const give_up = std::chrono::steady_clock::now() + 20s;
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status;
    if (std::chrono::steady_clock::now() > give_up) break;
    std::this_thread::sleep_for(5ms);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return std::nullopt;
}

void be_unwell() { throw std::runtime_error("the helper is unwell"); }

void train() {
  for (int step = 0; step < 3; ++step) {
    mark_all(*globals.ddp);
    globals.ddp->synchronize();
  }
  world().barrier();
}

class ForkedChild : public ::testing::Test {
 protected:
  void SetUp() override {
    globals.model.emplace(std::vector<std::size_t>{5, 1000});
    globals.ddp.emplace(world(), globals.model->parameters());
    globals.trace.emplace(folder_.path(), world().rank(), "parent");
    globals.team.emplace(2);
    globals.stream = std::make_shared<HostStream>();
    globals.stream->enqueue([] {});
    globals.stream->synchronize();
    EXPECT_FALSE(globals.team->run(2, [](std::size_t) {}));
    train();
  }
  void TearDown() override { globals.end(); }

  TemporaryFolder folder_;
};

TEST_F(ForkedChild, ThatExitsEndsAtOnceAndTheGroupGoesOn) {
  std::filesystem::remove(globals.trace->file());
  EXPECT_EQ(status_of_child([] { std::exit(7); }), 7 << 8);
  EXPECT_FALSE(std::filesystem::exists(globals.trace->file())) << "written in the parent's name";
  train();
}

TEST_F(ForkedChild, ThatEndsByAnExceptionIsNoFailureOfItsParent) {
  auto const status = status_of_child([]() noexcept { be_unwell(); });
  ASSERT_TRUE(status);
  EXPECT_EQ(WTERMSIG(*status), SIGABRT);
  char const* const file = std::getenv("DDP_ERROR_FILE");
  EXPECT_FALSE(file != nullptr && std::filesystem::exists(file));
  train();
}

TEST_F(ForkedChild, ThatLeavesItsScopesEndsAtOnce) {
  EXPECT_EQ(status_of_child([] {
              globals.end();
              World const copy = world();
              ::_exit(0);
            }),
            0);
  train();
}

}  // namespace
}  // namespace ddp::testing

// A comm hook that does not return.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/models/toy_model.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CommHook, R13OfARankThatDoesNotReturnIsToldToTheOthersAtTheirDeadline) {
  auto worlds = World::in_process(2, {.timeout = std::chrono::milliseconds(300)});
  std::atomic<bool> told{false};
  run_ranks(2, [&](int rank) {
    ToyModel model({10});
    DistributedDataParallel ddp(worlds[static_cast<std::size_t>(rank)], model.parameters());
    ddp.set_comm_hook({"slow", [&](GradientBucket const& bucket) {
                         auto const limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
                         while (rank == 1 && !told && std::chrono::steady_clock::now() < limit) {
                           std::this_thread::sleep_for(std::chrono::milliseconds(5));
                         }
                         bucket.communicator.all_reduce(bucket.gradients[0], bucket.op, bucket.stream);
                       }});
    std::string const message = message_of([&] {
      ddp.gradient_ready(0);
      ddp.synchronize();
    });
    if (rank == 0) {
      EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("all_reduce")));
      told = true;
    }
  });
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace ddp::testing

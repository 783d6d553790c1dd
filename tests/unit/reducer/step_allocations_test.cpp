// Invariant 4: a step in steady state allocates nothing, on any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "support/models/toy_model.hpp"
#include "support/ranks/run_ranks.hpp"

namespace {
std::atomic<long> allocations{0};
std::atomic<bool> counting{false};

void* counted(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes)
                           : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 1); }
void* operator new[](std::size_t bytes) { return counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t a) {
  return counted(bytes, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t bytes, std::align_val_t a) {
  return counted(bytes, static_cast<std::size_t>(a));
}
// Not inlined: g++ would see free() beside a call of new, and warn.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace ddp::testing {
namespace {

class StepAllocations : public ::testing::TestWithParam<GradientStorage> {};

// `from_sources`: half of the gradients lie in memory of the program's own.
void run_steps(GradientStorage storage, bool from_sources) {
  constexpr int kRanks = 3;
  constexpr std::size_t kParameters = 200;
  auto worlds = World::in_process(kRanks);
  run_ranks(kRanks, [&](int rank) {
    World const& world = worlds[static_cast<std::size_t>(rank)];
    ToyModel model(std::vector<std::size_t>(kParameters, 700));
    DistributedDataParallelOptions options;
    options.storage = storage;
    options.bucket_bytes = options.first_bucket_bytes = Bytes{16'000};
    std::vector<float> mean(300);
    std::vector<double> variance(300);
    options.buffers = {{"mean", view_of(std::span(mean))}, {"variance", view_of(std::span(variance))}};
    options.buffer_sync = BufferSync::average;
    DistributedDataParallel ddp(world, model.parameters(), options);
    auto const owner = std::make_shared<int>();
    auto const step = [&](bool weighted) {
      ddp.mark_buffers_dirty();
      ddp.sync_buffers();
      if (weighted) ddp.set_weight(2.0);
      for (std::size_t p = kParameters; p-- > 2;) {
        if (from_sources && p % 2 == 0) {
          ddp.gradient_ready(p, Tensor(view_of(std::span(model.own[p])), owner));
        } else {
          ddp.gradient_ready(p);
        }
      }
      ddp.no_gradient(1);  // and parameter 0 stays unused
      ddp.synchronize();
    };
    for (int i = 0; i < 5; ++i) step(i % 2 == 0);
    auto const meet = [&] { world.communicator().barrier(world.stream()); };
    meet();  // all ranks are behind what allocates
    if (rank == 0) counting = true;
    meet();
    for (int i = 0; i < 50; ++i) step(i % 2 == 0);
    meet();
    if (rank == 0) counting = false;
    meet();
  });
  EXPECT_EQ(allocations.exchange(0), 0);
}

TEST_P(StepAllocations, NoneInSteadyState) { run_steps(GetParam(), false); }

TEST(StepAllocations, NoneWhereGradientsLieInTheProgramsMemory) { run_steps(GradientStorage::arena, true); }

TEST(StepAllocations, AreCountedAtAll) {
  counting = true;
  std::vector<int> const something(1000);
  counting = false;
  EXPECT_GE(allocations.exchange(0), 1) << "the counter does not count: the other test shows nothing";
  EXPECT_EQ(something[0], 0);
}

INSTANTIATE_TEST_SUITE_P(All, StepAllocations,
                         ::testing::Values(GradientStorage::arena, GradientStorage::in_place,
                                           GradientStorage::copy),
                         [](auto const& parameters) { return std::string(to_string(parameters.param)); });

}  // namespace
}  // namespace ddp::testing

// What autograd libraries need of the reducer, on GPU memory, with ranks that are processes.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/device/event.hpp"
#include "ddp/device/memory.hpp"
#include "parallel/ddp/reducer_access.hpp"
#include "support/errors.hpp"
#include "support/models/device_toy.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

int sources_ranks() { return world().size(); }
int my_rank() { return world().rank().value(); }

void expect_average(std::vector<float> const& found, std::size_t p) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    float const expected = ToyModel::average_gradient(p, i, sources_ranks());
    ASSERT_NEAR(found[i], expected, std::abs(expected) * 1e-6F) << "parameter " << p << ", element " << i;
  }
}

// In device memory: parameter p's gradient of this rank, which the GPU has written already.
Tensor ready_gradient(std::size_t p, std::size_t count) {
  std::vector<float> elements(count);
  for (std::size_t i = 0; i < count; ++i) elements[i] = ToyModel::gradient(p, i, my_rank());
  Tensor const made = zeros(Shape{count}, DType::f32, world().device());
  copy_elements(made, view_of(std::span(elements)), world().stream());
  world().stream().synchronize();
  return made;
}

// Tens of milliseconds of work.
void keep_busy(Tensor const& scratch) {
  for (int i = 0; i < 200; ++i) zero_fill(scratch, world().stream());
}

Tensor make_scratch() { return zeros(Shape{std::size_t{1} << 30}, DType::u8, world().device()); }

// A large gradient in pieces, which the last rank does not have: ranks must scale in the same way.
TEST(GpuSources, R3R4R6WeightsWhereARankHasNoGradient) {
  std::vector<std::size_t> const counts{3, 70'000};
  DeviceToy<float> model(world(), counts);
  DistributedDataParallelOptions options;
  options.bucket_bytes = options.first_bucket_bytes = 65536_B;
  DistributedDataParallel ddp(world(), model.parameters(), options);
  Tensor const memory = ready_gradient(1, counts[1]);
  int const last = sources_ranks() - 1;
  bool const has_it = my_rank() != last || last == 0;
  for (int step = 0; step < 5; ++step) {
    ddp.set_weight(my_rank() + 1);
    model.fill_gradient(0, my_rank());
    if (has_it) ddp.gradient_ready(1, Tensor(memory, std::make_shared<int>()));
    ddp.gradient_ready(0);
    ddp.synchronize();
    double weights = 0;
    double sum = 0;
    for (int r = 0; r <= last; ++r) {
      weights += r + 1;
      if (r != last || last == 0) sum += (r + 1) * static_cast<double>(ToyModel::gradient(1, 69'999, r));
    }
    auto const expected = static_cast<float>(sum / weights);
    EXPECT_NEAR(model.gradient(1)[69'999], expected, std::abs(expected) * 1e-5F) << "step " << step;
  }
}

// The memory of zeros() may go only when no stream uses it: the test keeps it, the sources' owners are
// others.
TEST(GpuSources, R3R22AreCopiedIntoBucketsOfAnySize) {
  std::vector<std::size_t> const counts{5000, 3, 70'000, 1024};
  for (Bytes const bytes : {4096_B, 25_MiB}) {
    DeviceToy<float> model(world(), counts);
    DistributedDataParallelOptions options;
    options.bucket_bytes = options.first_bucket_bytes = bytes;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    std::vector<Tensor> memory;
    for (std::size_t p = 0; p < 4; ++p) memory.push_back(ready_gradient(p, counts[p]));
    for (int step = 0; step < 4;
         ++step) {  // registration order: the buckets are rebuilt after the first step
      auto const owner = std::make_shared<int>();
      for (std::size_t p = 0; p < 4; ++p) {
        if (p == 1 && step % 2 == 1) {
          model.fill_gradient(p, my_rank());
          ddp.gradient_ready(p);
        } else {
          ddp.gradient_ready(p, Tensor(memory[p], owner));
        }
      }
      ddp.synchronize();
      EXPECT_EQ(owner.use_count(), 1) << "a source is kept behind its step";
      for (std::size_t p = 0; p < 4; ++p) expect_average(model.gradient(p), p);
    }
    EXPECT_EQ(reducer_of(ddp).rebuilds(), 1);
  }
}

TEST(GpuSources, R5AreCopiedBehindTheWorkThatWritesThemAndTheHostDoesNotWait) {
  constexpr std::size_t kCount = std::size_t{16} << 20;
  Tensor const scratch = make_scratch();
  Tensor const ready = ready_gradient(0, kCount);
  Tensor const source = zeros(Shape{kCount}, DType::f32, world().device());
  DeviceToy<float> model(world(), {kCount});
  DistributedDataParallel ddp(world(), model.parameters());
  for (int step = 0; step < 2; ++step) {  // past the rebuild
    ddp.gradient_ready(0, source);
    ddp.synchronize();
  }
  world().stream().synchronize();
  Event done(world().device());
  world().barrier();
  keep_busy(scratch);
  copy_elements(source, ready, world().stream());
  ddp.gradient_ready(0, source);
  ddp.synchronize();
  done.record(world().stream());
  EXPECT_FALSE(done.reached()) << "the host waited in the step";
  zero_fill(source, world().stream());  // the program may use it again on this stream
  expect_average(model.gradient(0), 0);
}

TEST(GpuSources, R5TheComputeStreamMayChangeInTheMiddleOfAStep) {
  Tensor const scratch = make_scratch();
  std::vector<Tensor> const ready{ready_gradient(0, 3000), ready_gradient(1, 5000)};
  auto const other = make_compute_stream(world().device());
  DeviceToy<float> model(world(), {3000, 5000});
  DistributedDataParallel ddp(world(), model.parameters());
  for (int step = 0; step < 3; ++step) {
    keep_busy(scratch);
    copy_elements(model.gradient_view(1), ready[1], world().stream());
    ddp.gradient_ready(1);  // its bucket waits for parameter 0
    ddp.compute_on(*other);
    copy_elements(model.gradient_view(0), ready[0], *other);
    ddp.gradient_ready(0);
    ddp.synchronize();
    for (std::size_t p = 0; p < 2; ++p) {
      std::vector<float> found(ready[p].view().count());
      copy_elements(view_of(std::span(found)), model.gradient_view(p), *other);
      other->synchronize();
      expect_average(found, p);
    }
    ddp.compute_on(world().stream());
  }
  EXPECT_THAT(message_of([&] {
                auto const host = HostStream::inline_stream();
                ddp.compute_on(*host);
              }),
              HasSubstr("expected a stream of a device on which parameters lie, found one of cpu:0"));
}

TEST(GpuSources, R7UsedParametersAreReadByWorkOfTheComputeStream) {
  DeviceToy<float> model(world(), {500, 600, 700});
  DistributedDataParallel ddp(world(), model.parameters());
  std::vector<Tensor> copies;
  for (int step = 0; step < 6; ++step) {
    ddp.gradient_ready(2);
    if (step % 2 == 0) {
      ddp.no_gradient(1);
    } else if (my_rank() == 0) {
      ddp.gradient_ready(1);
    }
    ddp.synchronize();
    TensorView const used = ddp.used_parameters();
    EXPECT_EQ(used.device, world().device());
    copies.push_back(zeros(used.shape, DType::u8, world().device()));
    copy_elements(copies.back(), used, world().stream());
  }
  for (std::size_t step = 0; step < copies.size(); ++step) {
    std::vector<std::uint8_t> found(3);
    copy_elements(view_of(std::span(found)), copies[step], world().stream());
    world().stream().synchronize();
    std::vector<std::uint8_t> const expected{0, static_cast<std::uint8_t>(step % 2), 1};
    EXPECT_EQ(found, expected) << "step " << step;
  }
}

TEST(GpuSources, R3R22BucketsLieInMemoryOfTheProgramsAllocatorAndGradientsOutliveTheWrapper) {
  std::vector<float> initial(8, std::nanf(""));
  std::vector<Tensor> kept(2);
  int given = 0;
  {
    DeviceToy<float> model(world(), {8, 8});
    auto parameters = model.parameters();
    for (std::size_t p = 0; p < 2; ++p) {
      parameters[p].bind_gradient = [&kept, p](Tensor const& gradient) { kept[p] = gradient; };
    }
    DistributedDataParallelOptions options;
    options.allocate = [&](Bytes bytes, Device device) {
      ++given;
      Tensor const made = zeros(Shape{bytes.value}, DType::u8, device);
      TensorView floats = slice(made, 0, initial.size() * sizeof(float));
      floats.dtype = DType::f32;
      floats.shape = Shape{initial.size()};
      copy_elements(floats, view_of(std::span(initial)), world().stream());
      return made;
    };
    DistributedDataParallel ddp(world(), parameters, options);
    Tensor const source = ready_gradient(1, 8);
    ddp.gradient_ready(1, source);
    ddp.gradient_ready(0);
    ddp.synchronize();
    world().stream().synchronize();
  }
  EXPECT_EQ(given, 1);
  std::vector<float> found(8);
  copy_elements(view_of(std::span(found)), kept[1], world().stream());
  world().stream().synchronize();
  expect_average(found, 1);
  copy_elements(view_of(std::span(found)), kept[0], world().stream());
  world().stream().synchronize();
  EXPECT_THAT(found, Each(0.0F)) << "the memory was not zeroed";
}

}  // namespace
}  // namespace ddp::testing

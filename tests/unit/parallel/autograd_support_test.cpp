// What programs need whose gradients come from an autograd library, beside GradientSources.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "support/models/fresh_gradient.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As the threads of an autograd library do it, one for each device.
TEST(DistributedDataParallel, R22SeveralThreadsMarkGradients) {
  constexpr std::size_t kParameters = 60;
  on_ranks(2, [](World const& world) {
    std::atomic<int> alive{0};
    ToyModel model(std::vector<std::size_t>(kParameters, 7));
    DistributedDataParallel ddp(world, model.parameters(), buckets_of(100_B));
    for (int step = 0; step < 10; ++step) {
      std::vector<std::thread> threads;
      for (std::size_t first = 0; first < 3; ++first) {
        threads.emplace_back([&, first] {
          for (std::size_t p = first; p < kParameters; p += 3) {
            ddp.gradient_ready(p, fresh(p, 7, world.rank().value(), alive));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      ddp.synchronize();
      expect_averages(model, 2);
    }
    EXPECT_EQ(alive.load(), 0);
  });
}

TEST(DistributedDataParallel, R22AStepThatARankGivesUpEndsForAllWithItsReason) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters(), buckets_of(16_B));
    ddp.abandon_step("no step has begun");
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_FALSE(ddp.in_step());
    ddp.gradient_ready(1);
    EXPECT_TRUE(ddp.in_step());
    std::string const reason = "rank 0 gave up synchronised step 1 of ddp/0: the loss is odd";
    if (world.rank() == 0) {
      ddp.abandon_step("the loss is odd");
      ddp.abandon_step("again");
      EXPECT_FALSE(ddp.in_step());
      EXPECT_THAT(message_of([&] { ddp.gradient_ready(0); }),
                  HasSubstr("cannot be used any more: " + reason));
    } else {
      auto const error = error_of<CommError>([&] {
        ddp.gradient_ready(0);
        ddp.synchronize();
      });
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  });
}

TEST(DistributedDataParallel, R7UsedParametersAreBytesInMemory) {
  for (auto const unused :
       {DistributedDataParallelOptions::Unused::zero, DistributedDataParallelOptions::Unused::error}) {
    on_ranks(2, [&](World const& world) {
      ToyModel model({5, 6, 7});
      DistributedDataParallelOptions options;
      options.unused = unused;
      DistributedDataParallel ddp(world, model.parameters(), options);
      auto const used = [&] {
        auto const words = ddp.used_parameters().as<std::uint8_t>();
        return std::vector<int>(words.begin(), words.end());
      };
      EXPECT_THAT(used(), ElementsAre(0, 0, 0)) << "before the first step";
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_THAT(used(), ElementsAre(1, 1, 1));
      if (unused == DistributedDataParallelOptions::Unused::error) return;
      ddp.gradient_ready(2);
      if (world.rank() == 1) ddp.gradient_ready(0);
      ddp.synchronize();
      EXPECT_THAT(used(), ElementsAre(1, 0, 1));
    });
  }
}

TEST(DistributedDataParallel, R5TheComputeStreamMayChangeOnACpuToAnotherCallingThreadOnly) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    auto const other = HostStream::inline_stream();
    auto const elsewhere = HostStream::inline_stream(DeviceIndex{1});
    HostStream worker;
    EXPECT_THAT(message_of([&] { ddp.compute_on(worker); }), HasSubstr("an inline compute stream"));
    EXPECT_THAT(message_of([&] { ddp.compute_on(*elsewhere); }),
                HasSubstr("expected a stream of a device on which parameters lie, found one of cpu:1"));
    model.fill_gradients(world.rank().value());
    ddp.gradient_ready(1);
    ddp.compute_on(*other);
    ddp.gradient_ready(0);
    ddp.synchronize();
    expect_averages(model, 2);
    ddp.compute_on(world.stream());  // before `other` goes
  });
}

TEST(DistributedDataParallel, R5TheComputeStreamMayBeGivenAtConstruction) {
  on_ranks(2, [](World const& world) {
    ToyModel model({5, 6});
    auto const own = HostStream::inline_stream();
    auto const elsewhere = HostStream::inline_stream(DeviceIndex{1});
    EXPECT_THAT(message_of([&] {
                  DistributedDataParallel(world, model.parameters(), {.compute_stream = elsewhere.get()});
                }),
                HasSubstr("expected a stream of cpu:0, found one of cpu:1"));
    DistributedDataParallel ddp(world, model.parameters(), {.compute_stream = own.get()});
    model.fill_gradients(world.rank().value());
    for (std::size_t p = 2; p-- > 0;) ddp.gradient_ready(p);
    ddp.synchronize();
    expect_averages(model, 2);
  });
}

TEST(DistributedDataParallel, R22ValuesMayLieElsewhere) {
  on_ranks(1, [](World const& world) {
    ToyModel model({5, 6});
    DistributedDataParallel ddp(world, model.parameters());
    std::vector<float> loaded(6);
    TensorView const there = view_of(std::span(loaded));
    ddp.rebind_value(1, there);
    EXPECT_EQ(ddp.parameters()[1].value.data, loaded.data());
    EXPECT_THAT(
        message_of([&] { ddp.rebind_value(0, there); }),
        HasSubstr("rebind_value(0): expected f32[5] on cpu:0 for parameter 0 \"p0\", found f32[6] on cpu:0"));
    EXPECT_THAT(message_of([&] { ddp.rebind_value(1, {nullptr, Shape{6}}); }), HasSubstr("null pointer"));
    EXPECT_THAT(message_of([&] { ddp.rebind_value(2, there); }), HasSubstr("no parameter 2"));
    EXPECT_EQ(ddp.parameters()[0].value.data, model.values[0].data());
    model.fill_gradients(0);
    mark_all(ddp);
    ddp.synchronize();
    expect_averages(model, 1);
  });
}

TEST(DistributedDataParallel, R22GradientsOutliveTheWrapperAndTheWorld) {
  for (bool const own_memory : {false, true}) {
    std::vector<Tensor> gradients(2);
    on_ranks(2, [&](World const& world) {
      ToyModel model({5, 6});
      auto parameters = model.parameters();
      Tensor& kept = gradients[world.rank().index()];
      parameters[1].bind_gradient = [&](Tensor const& gradient) { kept = gradient; };
      DistributedDataParallelOptions options;
      if (own_memory) {
        options.allocate = [](Bytes bytes, Device /*device*/) {
          return Tensor::zeros(Shape{bytes.value}, DType::u8);
        };
      }
      DistributedDataParallel ddp(world, parameters, options);
      auto const here = kept.as<float>();
      for (std::size_t i = 0; i < 6; ++i) here[i] = ToyModel::gradient(1, i, world.rank().value());
      mark_all(ddp);
      ddp.synchronize();
    });
    for (Tensor const& each : gradients) {
      for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(each.as<float>()[i], ToyModel::average_gradient(1, i, 2));
    }
  }
}

TEST(DistributedDataParallel, R3R22BucketsLieInMemoryOfTheProgramsAllocator) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::copy}) {
    on_ranks(2, [&](World const& world) {
      ToyModel model({5, 6});
      std::vector<Tensor> given;
      DistributedDataParallelOptions options;
      options.storage = storage;
      options.allocate = [&](Bytes bytes, Device device) {
        EXPECT_EQ(device, world.device());
        given.push_back(Tensor::zeros(Shape{bytes.value}, DType::u8));
        std::memset(given.back().view().data, 0xff, bytes.value);  // as floats they are NaN
        return given.back();
      };
      DistributedDataParallel ddp(world, model.parameters(), options);
      ASSERT_EQ(given.size(), 1U);
      if (storage == GradientStorage::arena) {
        EXPECT_EQ(model.gradients[1], given[0].view().data);
        EXPECT_EQ(model.gradients[0][4], 0.0F) << "bound without being zeroed";
      }
      for (int step = 0; step < 3; ++step) {
        model.fill_gradients(world.rank().value());
        for (std::size_t const p : {0, 1}) ddp.gradient_ready(p);
        ddp.synchronize();
        expect_averages(model, 2);
        model.clear_gradients();
      }
      EXPECT_EQ(given.size(), 1U) << "a rebuild takes no more memory";
    });
  }
}

TEST(DistributedDataParallel, WrongMemoryOfAnAllocatorIsRefused) {
  auto const refusal = [](bool on_every_rank, std::function<Tensor(Bytes, Device)> const& allocate) {
    std::vector<std::string> messages(2);
    on_ranks(2, [&](World const& world) {
      ToyModel model({5, 6});
      DistributedDataParallelOptions options;
      if (on_every_rank || world.rank() == 1) options.allocate = allocate;
      messages[world.rank().index()] =
          message_of([&] { DistributedDataParallel const ddp(world, model.parameters(), options); });
    });
    return messages[1];
  };
  EXPECT_THAT(refusal(true, [](Bytes, Device) { return Tensor::zeros(Shape{3}, DType::u8); }),
              HasSubstr(" B on cpu:0, aligned to 16 B, and gave u8[3] on cpu:0"));
  EXPECT_THAT(refusal(true,
                      [](Bytes bytes, Device) {
                        return Tensor({nullptr, Shape{bytes.value}}, nullptr);
                      }),
              HasSubstr("null pointer"));
  EXPECT_THAT(
      refusal(false, [](Bytes bytes, Device) { return Tensor::zeros(Shape{bytes.value}, DType::u8); }),
      HasSubstr("memory of Options::allocate"));
}

}  // namespace
}  // namespace ddp::testing

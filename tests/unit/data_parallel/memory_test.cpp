// What DataParallel keeps, for how long, and what a refused call leaves (P1, P5, P6, P8, P12).
#include <gmock/gmock.h>

#include <set>

#include "ddp/data_parallel/data_parallel.hpp"
#include "support/errors.hpp"
#include "support/models/data_parallel_oracle.hpp"

namespace ddp::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<FunctionModule> unchanged() {
  return function_module(test_device(0), [](auto&, Value const& input) { return input; });
}

// One parameter, without a gradient until somebody binds one or backward() needs it; each backward() adds 1.
class Unplaced final : public ToyModule<float> {
 public:
  explicit Unplaced(std::shared_ptr<Stream> stream) : ToyModule(std::move(stream)), value_(allocate({4})) {}
  [[nodiscard]] std::vector<Parameter> parameters() override {
    return {{"w", value_, [this](TensorView const& view) { gradient_ = view; }, gradient_}};
  }
  [[nodiscard]] std::vector<float> gradient() { return pull(gradient_); }

 protected:
  Value do_forward(Value const& input) override { return input; }
  Value do_backward(Value const& output_gradient, GradientReady const& ready) override {
    if (gradient_.data == nullptr) gradient_ = (own_ = allocate({4})).view();
    auto sums = pull(gradient_);
    for (float& sum : sums) sum += 1;
    push(sums, gradient_);
    ready(0);
    return output_gradient;
  }
  [[nodiscard]] std::shared_ptr<Module> do_clone(std::shared_ptr<Stream> stream) override {
    return std::make_shared<Unplaced>(std::move(stream));
  }

 private:
  Tensor value_;
  Tensor own_;
  TensorView gradient_;
};

std::shared_ptr<Unplaced> unplaced() {
  return std::make_shared<Unplaced>(std::shared_ptr<Stream>(make_compute_stream(test_device(0))));
}

// Takes and overwrites memory that was freed.
std::vector<Tensor> use_freed_memory() {
  std::vector<Tensor> all;
  for (int i = 0; i < 64; ++i) all.push_back(tensor_on<float>(test_device(0), {4}, {7, 7, 7, 7}));
  return all;
}

TEST(DataParallelMemory, P8AModulesGradientsOutliveTheWrapper) {
  for (std::size_t const n : device_counts()) {
    auto const module = unplaced();
    Value const batch(counting<float>(Device{}, {2 * n}));
    for (std::size_t round = 1; round <= 3; ++round) {
      {
        DataParallel parallel(module, on(test_devices(n)));
        static_cast<void>(parallel.forward(batch));
        static_cast<void>(parallel.backward(counting<float>(test_device(0), {2 * n})));
      }
      auto const others = use_freed_memory();
      EXPECT_THAT(module->gradient(), Each(static_cast<float>(round * n)));
    }
  }
}

TEST(DataParallelMemory, P8AModuleTrainsByItselfBehindTheFreeFunction) {
  auto const module = unplaced();
  std::size_t const n = device_counts().back();
  static_cast<void>(data_parallel(module, counting<float>(Device{}, {2 * n}), on(test_devices(n))));
  auto const others = use_freed_memory();
  static_cast<void>(module->backward(counting<float>(test_device(0), {2 * n})));
  EXPECT_THAT(module->gradient(), Each(1.0F));
  for (Tensor const& other : others) EXPECT_THAT(elements_of<float>(other), Each(7.0F));
}

TEST(DataParallelMemory, P8SumsGoWhereGradientsAreBoundLater) {
  std::size_t const n = device_counts().back();
  auto const expected = train<double>(*toy_net<double>(test_device(0)), 6, test_device(0));
  auto const module = toy_net<double>(test_device(0));
  DataParallel parallel(module, on(test_devices(n)));
  Parameter const first = module->parameters()[0];
  Tensor const elsewhere = zeros(first.value.shape, DType::f64, test_device(0));
  first.bind_gradient(elsewhere);
  expect_near_all(train<double>(parallel, 6, test_device(0)), expected);
}

TEST(DataParallelMemory, P8ATiedParameterListedTwiceIsRefused) {
  std::shared_ptr<Stream> const stream = make_compute_stream(test_device(0));
  auto const layer = std::make_shared<TanhLayer<float>>(stream, 3, 3);
  auto const tied = std::make_shared<Chain>(stream, std::vector<std::shared_ptr<Module>>{layer, layer});
  EXPECT_EQ(message_of([&] { DataParallel parallel(tied, on(test_devices(1))); }),
            "parameters \"part0.weight\" and \"part1.weight\" have the same value, which would be added up "
            "twice; list a tied parameter once");
}

TEST(DataParallelMemory, P5StepsUseTheSameMemoryThoughLayersKeepTheirInput) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  Value kept;
  DataParallel parallel(function_module(test_device(0),
                                        [&](FunctionModule& self, Value const& input) {
                                          if (self.device() == test_device(1)) kept = input;
                                          return input;
                                        }),
                        on(test_devices(2)));
  std::set<void const*> places;
  std::vector<Tensor> others;  // so that freed memory is not had again
  for (int step = 0; step < 8; ++step) {
    static_cast<void>(parallel.forward(counting<float>(Device{}, {2, 64})));
    places.insert(kept.view().data);
    for (int i = 0; i < 8; ++i) others.push_back(zeros(Shape{64 * 4}, DType::u8, test_device(1)));
  }
  EXPECT_LE(places.size(), 3U);
}

TEST(DataParallelMemory, P6ARefusedForwardLeavesNothingToGoBackFrom) {
  DataParallel parallel(unchanged(), on(test_devices(1)));
  Value const batch(counting<float>(test_device(0), {4}));
  static_cast<void>(parallel.forward(batch));
  EXPECT_THAT(message_of([&] { static_cast<void>(parallel.forward(counting<float>(Device{}, Shape{}))); }),
              HasSubstr("which has no dimension 0"));
  auto const error = error_of([&] { static_cast<void>(parallel.backward(batch)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_state);
  EXPECT_THAT(error.what(), HasSubstr("backward() comes after a forward() that succeeded"));
}

TEST(DataParallelMemory, P1P12AModuleAloneHasTheWholeBatch) {
  ReplicaShare found;
  DataParallel parallel(unchanged(),
                        {.device_ids = test_devices(0),
                         .dim = 1,
                         .loss = [&](auto&, auto const& output, auto const&, ReplicaShare const& share) {
                           found = share;
                           return ReplicaLoss{output, output};
                         }});
  Value const batch(counting<float>(test_device(0), {2, 5}));
  auto const backward = [&] { static_cast<void>(parallel.backward_loss()); };
  EXPECT_EQ(error_of(backward).code(), ErrorCode::invalid_state);
  EXPECT_THAT(message_of(backward), HasSubstr("backward_loss() comes after a forward_loss() that succeeded"));
  static_cast<void>(parallel.forward_loss(batch, batch));
  EXPECT_EQ(found.rows, 5U);
  EXPECT_EQ(found.total_rows, 5U);
  EXPECT_TRUE(parallel.backward_loss().is_tensor());
}

TEST(DataParallelMemory, P12TargetsFitTheInputRowByRowOrAreShared) {
  if (fewer_devices_than(2)) GTEST_SKIP() << "needs 2 devices";
  DataParallel parallel(
      unchanged(),
      {.device_ids = test_devices(2),
       .loss = [](Module& replica, auto const& output, Value const& target, ReplicaShare const& share) {
         bool const shared = target.kind() == Value::Kind::other;
         EXPECT_EQ(shared ? target.other<int>() : 7, 7);
         float const rows = static_cast<float>(share.rows * 10 + share.total_rows);
         return ReplicaLoss{tensor_on<float>(replica.device(), Shape{}, {rows}), output};
       }});
  auto const losses = [&](std::size_t rows, Value const& target) {
    return elements_of<float>(parallel.forward_loss(counting<float>(Device{}, {rows}), target).view(),
                              parallel->stream());
  };
  // Two chunks each, of 3 + 2 and of 3 + 3.
  EXPECT_EQ(message_of([&] { losses(5, counting<float>(Device{}, {6})); }),
            "the target has extent 6 along dimension 0, expected 5, that of the input");
  EXPECT_THAT(losses(1, Value::other(7)), ElementsAre(11));
  EXPECT_THAT(losses(5, Value()), ElementsAre(35, 25));
  EXPECT_THAT(losses(5, Value::other(7)), ElementsAre(35, 25));
}

TEST(DataParallelMemory, P3AnOutputDeviceThatIsNotThereIsRefusedWithoutReplicasToo) {
  auto const error = error_of([&] {
    DataParallel parallel(unchanged(),
                          {.device_ids = test_devices(0), .output_device = test_device(test_device_count())});
  });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace ddp::testing

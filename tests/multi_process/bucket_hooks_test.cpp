// R13 and R15: buckets that the program reduces itself, and uses as soon as they are reduced.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

DistributedDataParallelOptions small_buckets() {
  return {.bucket_bytes = 2000_B, .first_bucket_bytes = 500_B};
}

void as_without(GradientBucket const& bucket) {
  for (TensorView const& gradients : bucket.gradients) {
    bucket.communicator.all_reduce(gradients, bucket.op, bucket.stream);
  }
}

template <class Model>
void expect_averages(Model const& model, std::size_t parameters) {
  for (std::size_t p = 0; p < parameters; ++p) {
    auto const found = model.gradient(p);
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i], ToyModel::average_gradient(p, i, world().size())) << p << ", " << i;
    }
  }
}

// ---- comm hooks

TEST(CommHook, R13SeesEveryBucketOnceAndItsResultCounts) {
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    DeviceToy<float> model(world(), {1500, 3, 700});
    DistributedDataParallelOptions options = small_buckets();
    options.storage = storage;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    std::vector<std::size_t> order;
    std::size_t elements = 0;
    std::size_t count = 0;
    ddp.set_comm_hook({"replaced", [](GradientBucket const&) { FAIL() << "another hook was given"; }});
    ddp.set_comm_hook({"count", [&](GradientBucket const& bucket) {
                         order.push_back(bucket.index);
                         count = bucket.count;
                         for (BucketSlice const& piece : bucket.slices) elements += piece.count;
                         EXPECT_EQ(bucket.parameters.size(), 3U);
                         EXPECT_EQ(bucket.op.kind, ReduceOp::Kind::average);
                         as_without(bucket);
                       }});
    for (int step = 0; step < 3; ++step) {
      order.clear();
      elements = 0;
      model.fill_gradients(world().rank().value());
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_GT(count, 2U);
      ASSERT_EQ(order.size(), count);
      for (std::size_t b = 0; b < count; ++b) EXPECT_EQ(order[b], b);
      EXPECT_EQ(elements, 2203U);
      expect_averages(model, 3);
    }
  }
}

TEST(CommHook, R13MayLeaveGradientsOfThisRank) {
  DeviceToy<float> model(world(), {1500, 3, 700});
  DistributedDataParallel ddp(world(), model.parameters(), small_buckets());
  ddp.set_comm_hook({"local", [](GradientBucket const&) {}});
  model.fill_gradients(world().rank().value());
  mark_all(ddp);
  ddp.synchronize();
  for (std::size_t p = 0; p < 3; ++p) {
    EXPECT_EQ(model.gradient(p)[1], ToyModel::gradient(p, 1, world().rank().value()));
  }
}

TEST(CommHook, R13ComesBeforeTheFirstStepAndIsTheSameOnEveryRank) {
  DeviceToy<float> model(world(), {100});
  DistributedDataParallel ddp(world(), model.parameters());
  EXPECT_THAT(message_of([&] { ddp.set_comm_hook({"", as_without}); }), HasSubstr("give the hook a name"));
  if (world().size() > 1) {
    auto const differ = [&] { ddp.set_comm_hook({world().rank() == 1 ? "odd" : "even", as_without}); };
    EXPECT_THAT(gathered(message_of(differ)),
                Each(HasSubstr("rank 1 would reduce gradients with the comm hook \"odd\"; rank 0 with the "
                               "comm hook \"even\"; give every rank the same hook")));
    auto const one = [&] {
      ddp.set_comm_hook(world().rank() == 1 ? CommHook{} : CommHook{"one", as_without});
    };
    EXPECT_THAT(gathered(message_of(one)),
                Each(HasSubstr("rank 1 would reduce gradients with no comm hook")));
  }
  model.fill_gradients(world().rank().value());
  mark_all(ddp);
  EXPECT_THAT(message_of([&] {
                ddp.set_comm_hook({"late", as_without});
              }),
              HasSubstr("set_comm_hook() after synchronised step 0 has begun"));
  ddp.synchronize();
  expect_averages(model, 1);
  EXPECT_THAT(message_of([&] {
                ddp.set_comm_hook({"late", as_without});
              }),
              HasSubstr("before the first backward pass"));
}

TEST(CommHook, R13ThatThrowsOnOneRankEndsTheStepOnAll) {
  for (bool const is_exception : {true, false}) {
    DeviceToy<float> model(world(), {1500, 3, 700});
    OwnReducer reducer(model, small_buckets());
    reducer->set_comm_hook({"odd", [&](GradientBucket const& bucket) {
                              if (world().rank().value() == world().size() - 1 && bucket.index == 2) {
                                if (is_exception) throw std::runtime_error("a bad day");
                                throw 5;
                              }
                              as_without(bucket);
                            }});
    auto const messages = gathered(message_of([&] {
      reducer.train();
      reducer.wait();
    }));
    EXPECT_THAT(messages, Each(AllOf(HasSubstr("comm hook \"odd\" threw at bucket 2 of synchronised step 0"),
                                     HasSubstr(is_exception ? "a bad day" : "no std::exception"))));
    EXPECT_THAT(message_of([&] { reducer->gradient_ready(0); }), HasSubstr("cannot be used any more"));
  }
}

TEST(CommHook, R13ThatSendsAnotherSizeIsAnErrorOnEveryRank) {
  if (world().size() == 1) return;
  DeviceToy<float> model(world(), {1500, 3, 700});
  OwnReducer reducer(model, small_buckets());
  reducer->set_comm_hook({"cut", [](GradientBucket const& bucket) {
                            TensorView const& all = bucket.gradients[0];
                            std::size_t const count = all.count() - (world().rank() == 1 ? 1 : 0);
                            bucket.communicator.all_reduce(slice(all, 0, count), bucket.op, bucket.stream);
                          }});
  auto const messages = gathered(message_of([&] {
    reducer.train();
    reducer.wait();
  }));
  EXPECT_THAT(messages, Each(HasSubstr("all_reduce")));
  EXPECT_THAT(messages, Each(HasSubstr("rank 1")));
}

// ---- on_bucket_ready

// Copies results, in the order of the stream that it is given.
class Seen {
 public:
  Seen(DeviceToy<float> const& model, std::vector<std::size_t> const& counts) : model_(model) {
    for (std::size_t const count : counts) {
      copies_.push_back(zeros(Shape{count}, DType::f32, world().device()));
    }
  }
  void operator()(ReducedBucket const& bucket) {
    EXPECT_EQ(bucket.index, buckets++);
    for (BucketSlice const& piece : bucket.slices) {
      elements += piece.count;
      copy_elements(slice(copies_[piece.parameter], piece.parameter_offset, piece.count),
                    slice(model_.gradient_view(piece.parameter), piece.parameter_offset, piece.count),
                    bucket.stream);
    }
  }
  void expect(int factor) const {
    for (std::size_t p = 0; p < copies_.size(); ++p) {
      std::vector<float> found(copies_[p].view().count());
      copy_elements(view_of(std::span(found)), copies_[p], world().stream());
      world().stream().synchronize();
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i], static_cast<float>(factor) * ToyModel::average_gradient(p, i, world().size()));
      }
    }
  }
  std::size_t buckets = 0;
  std::size_t elements = 0;

 private:
  DeviceToy<float> const& model_;
  std::vector<Tensor> copies_;
};

// A slow update of one step must not see what the next step writes.
TEST(BucketReady, R15EachBucketsResultsCanBeUsedAndSynchronizeWaitsForThat) {
  std::vector<std::size_t> const counts{1500, 3, 700};
  for (auto const storage : {GradientStorage::arena, GradientStorage::in_place, GradientStorage::copy}) {
    DeviceToy<float> model(world(), counts);
    DistributedDataParallelOptions options = small_buckets();
    options.storage = storage;
    DistributedDataParallel ddp(world(), model.parameters(), options);
    Seen seen(model, counts);
    ddp.on_bucket_ready([&](ReducedBucket const& bucket) {
      if (world().device().kind == DeviceKind::cpu) {
        host_stream(bucket.stream).enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
      }
      seen(bucket);
    });
    for (int step = 1; step < 5; ++step) {
      seen.buckets = seen.elements = 0;
      for (std::size_t p = 0; p < counts.size(); ++p) {
        std::vector<float> gradient(counts[p]);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          gradient[i] = static_cast<float>(step) * ToyModel::gradient(p, i, world().rank().value());
        }
        model.write_gradient(p, gradient);
      }
      {
        NoSyncGuard const guard = ddp.no_sync();
        mark_all(ddp);
        ddp.synchronize();
        EXPECT_EQ(seen.buckets, 0U);
      }
      mark_all(ddp);
      ddp.synchronize();
      EXPECT_EQ(seen.elements, 2203U);
      seen.expect(step);
    }
    ddp.on_bucket_ready({});
    seen.buckets = 0;
    mark_all(ddp);
    ddp.synchronize();
    EXPECT_EQ(seen.buckets, 0U);
  }
}

TEST(BucketReady, R15AFirstBucketIsHandedOverBeforeTheLastGradientIsThere) {
  DeviceToy<float> model(world(), {1500, 3, 700});
  DistributedDataParallel ddp(world(), model.parameters(), small_buckets());
  std::vector<std::vector<std::uint8_t>> marked;
  ddp.on_bucket_ready(
      [&](ReducedBucket const& bucket) { marked.emplace_back(bucket.marked.begin(), bucket.marked.end()); });
  model.fill_gradients(world().rank().value());
  ddp.gradient_ready(2);
  EXPECT_THAT(marked, Each(::testing::ElementsAre(0, 0, 1)));
  EXPECT_GE(marked.size(), 1U);
  ddp.gradient_ready(1);
  EXPECT_THAT(message_of([&] { ddp.on_bucket_ready({}); }),
              HasSubstr("in the middle of a synchronised step"));
  ddp.synchronize();
  EXPECT_THAT(marked.back(), ::testing::ElementsAre(0, 1, 1)) << "parameter 0 was not marked";
}

TEST(BucketReady, R15ThatThrowsOnOneRankEndsTheStepOnAll) {
  DeviceToy<float> model(world(), {1500, 3, 700});
  OwnReducer reducer(model, small_buckets());
  reducer->on_bucket_ready([&](ReducedBucket const& bucket) {
    if (world().rank() == 0 && bucket.index == 1) throw std::runtime_error("no optimizer");
  });
  world().barrier();  // as soon as rank 0 is in its step, nobody can register
  auto const messages = gathered(message_of([&] {
    reducer.train();
    reducer.wait();
  }));
  EXPECT_THAT(messages,
              Each(HasSubstr("on_bucket_ready() was given threw at bucket 1 of synchronised step 0: "
                             "no optimizer")));
}

TEST(BucketReady, R15WithErrorsAtTheEndOfAStepIsRefused) {
  DeviceToy<float> model(world(), {8});
  for (DistributedDataParallelOptions const& options :
       {DistributedDataParallelOptions{.unused = DistributedDataParallelOptions::Unused::error},
        DistributedDataParallelOptions{.nonfinite = DistributedDataParallelOptions::Nonfinite::error},
        DistributedDataParallelOptions{.uneven = DistributedDataParallelOptions::Uneven::error}}) {
    DistributedDataParallel ddp(world(), model.parameters(), options);
    EXPECT_THAT(message_of([&] { ddp.on_bucket_ready([](ReducedBucket const&) {}); }),
                HasSubstr("unused, nonfinite or uneven = error a step may be refused at its end"));
  }
}

}  // namespace
}  // namespace ddp::testing

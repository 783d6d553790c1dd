// Collective operations on PyTorch's tensors, against the same computed on each rank.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "ddp/core/text.hpp"
#include "ddp/libtorch/collectives.hpp"
#include "libtorch/models.hpp"

namespace ddp::testing {
namespace {

using libtorch::Collectives;
using ::testing::Each;
using ::testing::HasSubstr;

std::int64_t size() { return world().size(); }
std::int64_t rank() { return world().rank().value(); }

torch::TensorOptions of(at::ScalarType type) {
  return torch::TensorOptions(type).device(libtorch::device(world()));
}

// Small whole numbers that each type has, others on each rank.
torch::Tensor numbers(std::vector<std::int64_t> const& shape, at::ScalarType type,
                      std::int64_t on_rank = rank()) {
  auto const count = c10::multiply_integers(shape);
  return (torch::arange(count, of(at::kLong)) % 3 + on_rank + 1).to(type).view(shape);
}

std::vector<torch::Tensor> of_all_ranks(std::vector<std::int64_t> const& shape, at::ScalarType type) {
  std::vector<torch::Tensor> all;
  for (std::int64_t r = 0; r < size(); ++r) all.push_back(numbers(shape, type, r));
  return all;
}

void expect_same(torch::Tensor const& found, torch::Tensor const& expected) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_EQ(found.device(), expected.device());
  EXPECT_TRUE(torch::equal(found, expected)) << found << "\nexpected\n" << expected;
}

std::vector<at::ScalarType> const kReduced{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,
                                           at::kLong,   at::kInt,   at::kByte};
std::vector<at::ScalarType> const kCarried{at::kDouble, at::kFloat, at::kHalf,         at::kBFloat16,
                                           at::kLong,   at::kInt,   at::kShort,        at::kChar,
                                           at::kByte,   at::kBool,  at::kComplexFloat, at::kComplexDouble};
// Scalars, no elements, several dimensions.
std::vector<std::vector<std::int64_t>> const kShapes{{}, {0}, {3, 0}, {1}, {5}, {2, 3, 4}};

TEST(LibtorchCollectives, AllReduceIsTheReductionOfTheRanksTensors) {
  Collectives ranks(world());
  for (auto const type : kReduced) {
    for (auto const& shape : kShapes) {
      SCOPED_TRACE(text(c10::toString(type), " of ", shape.size(), " dimensions"));
      auto const all = torch::stack(of_all_ranks(shape, type));
      auto sum = numbers(shape, type);
      ranks.all_reduce(sum);
      expect_same(sum, all.sum(0).to(type));
      auto greatest = numbers(shape, type);
      ranks.all_reduce(greatest, ReduceOp::max());
      expect_same(greatest, all.amax(0));
      auto least = numbers(shape, type);
      ranks.all_reduce(least, ReduceOp::min());
      expect_same(least, all.amin(0));
      auto product = numbers(shape, type);
      ranks.all_reduce(product, ReduceOp::product());
      expect_same(product, all.prod(0).to(type));
      if (!c10::isFloatingType(type)) continue;
      auto mean = numbers(shape, type);
      ranks.all_reduce(mean, ReduceOp::average());
      expect_near(mean.to(at::kDouble), all.to(at::kDouble).mean(0), type == at::kDouble ? 1e-12 : 2e-2);
    }
  }
}

TEST(LibtorchCollectives, BoolHasOrAndAnd) {
  Collectives ranks(world());
  auto const first = torch::tensor({rank() == 0, true, false}, of(at::kBool));
  auto any = first.clone();
  ranks.all_reduce(any, ReduceOp::max());
  expect_same(any, torch::tensor({true, true, false}, of(at::kBool)));
  auto all = first.clone();
  ranks.all_reduce(all, ReduceOp::min());
  expect_same(all, torch::tensor({size() == 1, true, false}, of(at::kBool)));
}

TEST(LibtorchCollectives, ComplexNumbersHaveSumAndAverage) {
  Collectives ranks(world());
  auto const unit = torch::complex(torch::zeros({2}, of(at::kFloat)), torch::ones({2}, of(at::kFloat)));
  auto sum = unit * static_cast<double>(rank() + 1);
  ranks.all_reduce(sum);
  expect_same(sum, unit * (static_cast<double>(size() * (size() + 1)) / 2));
  auto conjugate = unit.conj();  // lazy: its memory has the other sign
  ranks.all_reduce(conjugate, ReduceOp::average());
  expect_near(torch::imag(conjugate.resolve_conj()), -torch::ones({2}, of(at::kFloat)));
  expect_same(
      ranks.all_gather(unit.conj()).resolve_conj(),
      torch::cat(std::vector<torch::Tensor>(static_cast<std::size_t>(size()), unit.conj().resolve_conj())));
}

TEST(LibtorchCollectives, AllGatherPutsTheRanksTensorsBehindOneAnother) {
  Collectives ranks(world());
  for (auto const type : kCarried) {
    for (auto const& shape : kShapes) {
      SCOPED_TRACE(text(c10::toString(type), " of ", shape.size(), " dimensions"));
      auto const all = of_all_ranks(shape, type);
      expect_same(ranks.all_gather(numbers(shape, type)),
                  shape.empty() ? torch::stack(all) : torch::cat(all));
    }
  }
}

TEST(LibtorchCollectives, BroadcastGivesEveryRankTheRootsTensor) {
  Collectives ranks(world());
  for (auto const type : kCarried) {
    for (auto const& shape : kShapes) {
      SCOPED_TRACE(text(c10::toString(type), " of ", shape.size(), " dimensions"));
      for (auto const root : {std::int64_t{0}, size() - 1}) {
        auto mine = numbers(shape, type);
        ranks.broadcast(mine, Rank{static_cast<int>(root)});
        expect_same(mine, numbers(shape, type, root));
      }
    }
  }
}

TEST(LibtorchCollectives, ReduceScatterGivesEachRankItsPartOfTheReduction) {
  Collectives ranks(world());
  for (auto const type : kReduced) {
    for (std::vector<std::int64_t> const& shape :
         {std::vector<std::int64_t>{2 * size()}, {size(), 3}, {0, 2}}) {
      SCOPED_TRACE(text(c10::toString(type), " of ", shape.size(), " dimensions"));
      auto const sum = torch::stack(of_all_ranks(shape, type)).sum(0).to(type);
      auto const whole = numbers(shape, type);
      expect_same(ranks.reduce_scatter(whole), sum.chunk(size())[shape[0] == 0 ? 0 : rank()]);
      expect_same(whole, numbers(shape, type));
    }
  }
}

TEST(LibtorchCollectives, TensorsMayLieInAnyOrder) {
  Collectives ranks(world());
  auto const whole = numbers({4, 6}, at::kFloat);
  auto const sum = torch::stack(of_all_ranks({4, 6}, at::kFloat)).sum(0);
  auto transposed = whole.clone().t();
  ranks.all_reduce(transposed);
  expect_same(transposed, sum.t());
  EXPECT_FALSE(transposed.is_contiguous());
  auto const around = whole.clone();
  auto columns = around.slice(1, 1, 6, 2);
  ranks.all_reduce(columns);
  expect_same(columns, sum.slice(1, 1, 6, 2));
  expect_same(around.slice(1, 0, 6, 2), whole.slice(1, 0, 6, 2));  // what lies between stays
  expect_same(ranks.all_gather(whole.t()), torch::cat([] {
                std::vector<torch::Tensor> parts;
                for (auto const& part : of_all_ranks({4, 6}, at::kFloat)) parts.push_back(part.t());
                return parts;
              }()));
  auto last = numbers({2, 2, 3, 3}, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
  ranks.broadcast(last);
  expect_same(last, numbers({2, 2, 3, 3}, at::kFloat, 0));
  expect_same(ranks.all_gather(whole[0][0].expand({3})).slice(0, 0, 3),
              numbers({1}, at::kFloat, 0).expand({3}));
}

// On a GPU the host runs ahead of what comes before and after.
TEST(LibtorchCollectives, KeepTheirPlaceAmongOperationsOfPyTorch) {
  Collectives ranks(world());
  auto const place = libtorch::device(world());
  for (bool const own_stream : {false, true}) {
    c10::OptionalStreamGuard guard;
    if (own_stream && place.is_cuda()) {
      guard.reset_stream(c10::impl::VirtualGuardImpl(place.type()).getStreamFromGlobalPool(place));
    }
    auto x = torch::full({512, 512}, 1.0 / 512, of(at::kDouble));
    for (int i = 0; i < 20; ++i) {
      x = x.mm(x) *
          static_cast<double>(rank() + 1);  // of equal elements, whose product with 512 is 1 · factor
      ranks.all_reduce(x);
      x /= static_cast<double>(size() * (size() + 1)) / 2;
      auto const all = ranks.all_gather(x);
      x = all.view({size(), 512, 512}).mean(0);
    }
    expect_near(x, torch::full_like(x, 1.0 / 512));
    ranks.barrier();
  }
}

TEST(LibtorchCollectives, AutogradKnowsThatATensorHasChanged) {
  Collectives ranks(world());
  auto const weight = torch::ones({3}, of(at::kFloat)).requires_grad_();
  auto const x = torch::ones({3}, of(at::kFloat));
  auto const loss = (weight * x).sum();
  ranks.all_reduce(x);
  EXPECT_THAT(messages_of([&] { loss.backward(); }), Each(HasSubstr("modified by an inplace operation")));
  c10::InferenceMode const inference;
  auto counted = torch::ones({}, of(at::kLong));
  ranks.all_reduce(counted);
  EXPECT_EQ(counted.item<std::int64_t>(), size());
}

TEST(LibtorchCollectives, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  Collectives ranks(world());
  auto const refused = [&](torch::Tensor const& tensor, char const* why, ReduceOp op = ReduceOp::sum()) {
    EXPECT_THAT(message_of([&] { ranks.all_reduce(tensor, op); }), HasSubstr(why));
  };
  auto const ones = torch::ones({3}, of(at::kFloat));
  refused({}, "found an undefined one");
  refused(torch::ones({3}, at::kMeta), "found one on meta");
  refused(ones.to_sparse(), "expected a dense one");
  refused(ones.expand({2, 3}), "pass tensor.clone()");
  refused(ones.clone().requires_grad_(), "pass tensor.detach()");
  refused(ones.to(at::kBool), "there is no sum of bool");
  refused(ones.to(at::kShort), "there is no sum of i16");
  refused(ones.to(at::kComplexFloat), "there is no product of complex", ReduceOp::product());
  refused(ones.to(at::kLong), "the average of i64 is not an integer", ReduceOp::average());
  EXPECT_THAT(message_of([&] { static_cast<void>(ranks.all_gather(ones.to(at::kFloat8_e5m2))); }),
              HasSubstr("which ranks cannot exchange"));
  EXPECT_THAT(message_of([&] { ranks.broadcast(ones, Rank{world().size()}); }), HasSubstr("is not a rank"));
  EXPECT_THAT(message_of([&] { static_cast<void>(ranks.reduce_scatter(torch::ones({}, of(at::kFloat)))); }),
              HasSubstr("can share equally"));
  if (size() > 1) {
    EXPECT_THAT(message_of([&] {
                  static_cast<void>(ranks.reduce_scatter(torch::ones({size() + 1}, of(at::kFloat))));
                }),
                HasSubstr("can share equally"));
  }
  torch::NoGradGuard const no_graph;  // as after backward(), for a loss to print
  auto loss = torch::ones({}, of(at::kFloat)).requires_grad_();
  ranks.all_reduce(loss);
  EXPECT_EQ(loss.item<float>(), static_cast<float>(size()));
}

TEST(LibtorchCollectives, DifferentCallsAreAnErrorOnEveryRank) {
  if (size() == 1) GTEST_SKIP() << "needs several ranks";
  std::vector<Rank> everyone;
  for (int r = 0; r < world().size(); ++r) everyone.emplace_back(r);
  World const part = world().subgroup(everyone).value();  // is broken afterwards
  Collectives ranks(part);
  EXPECT_THAT(messages_of([&] {
                auto const x = torch::ones({rank() == 0 ? 3 : 4}, of(at::kFloat));
                ranks.all_reduce(x);
                ranks.barrier();
              }),
              Each(HasSubstr("f32[3]")));
}

TEST(LibtorchCollectives, AStepWithThemRunsWithoutAGraph) {
  auto net = on_device(std::make_shared<TwoLayers>());
  Wrapped wrapped(world(), *net, small_buckets());
  Collectives ranks(world());
  torch::Tensor loss;
  libtorch::StepGraph graph(wrapped, [&] {
    net->zero_grad();
    loss = loss_of(net->forward(torch::ones({2, 6}, of(at::kFloat))));
    loss.backward();
    loss = loss.detach();
    ranks.all_reduce(loss);
  });
  for (int step = 0; step < 6; ++step) graph.run();
  EXPECT_FALSE(graph.is_recorded());
  if (libtorch::device(world()).is_cuda()) {
    EXPECT_THAT(graph.why_eager(), HasSubstr("all_reduce"));
  }
  auto const expected = loss_of(net->forward(torch::ones({2, 6}, of(at::kFloat)))).detach();
  expect_near(loss, expected * size());
}

}  // namespace
}  // namespace ddp::testing

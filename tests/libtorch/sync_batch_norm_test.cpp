// SyncBatchNorm on several ranks, against torch::nn::BatchNorm on the whole batch in one process.
#include <cstring>
#include <numeric>

#include "ddp/core/text.hpp"
#include "libtorch/normalised_models.hpp"

namespace ddp::testing {
namespace {

using torch::nn::BatchNormOptions;

// How many rows each rank has.
using Rows = std::vector<std::int64_t>;
Rows even(std::int64_t rows) { return Rows(static_cast<std::size_t>(world().size()), rows); }
Rows uneven() {
  Rows rows = even(0);
  std::iota(rows.begin(), rows.end(), 2);
  return rows;
}
// None on rank `without`.
Rows empty_on(std::size_t without) {
  Rows rows = even(3);
  if (world().size() > 1) rows[without] = 0;
  return rows;
}
std::int64_t total(Rows const& rows) { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }

torch::Tensor part_of(torch::Tensor const& whole, Rows const& rows) {
  auto const mine = rows.begin() + static_cast<std::ptrdiff_t>(rank());
  return whole.narrow(0, std::accumulate(rows.begin(), mine, std::int64_t{0}), *mine);
}

// The sum over ranks.
torch::Tensor sum_of_ranks(torch::Tensor const& mine) {
  torch::Tensor const here = mine.detach().cpu().contiguous();
  torch::Tensor sum = torch::zeros_like(here);
  for (std::string const& bytes : gathered(bytes_of_all({here}))) {
    torch::Tensor other = torch::empty_like(here);
    std::memcpy(other.data_ptr(), bytes.data(), bytes.size());
    sum += other;
  }
  return sum.to(mine.device());
}

struct Case {
  Rows rows;
  std::vector<std::int64_t> form = {3, 4};  // of a value, after the channels
  BatchNormOptions options = BatchNormOptions(4);
  at::ScalarType input = at::kFloat;
  at::ScalarType parameters = at::kFloat;
  double tolerance = 1e-5;
  bool channels_last = false;
};

void expect_close(torch::Tensor const& found, torch::Tensor const& expected, double tolerance,
                  char const* what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(found.sizes(), expected.sizes());
  expect_near(found.to(torch::kDouble), expected.to(torch::kDouble), tolerance);
}

// The oracle computes in the parameters' precision what `found` computes in the input's.
template <class Whole>
void expect_same_steps(Case const& each) {
  BatchNormOptions const options(each.options);
  SyncBatchNorm norm(world(), options);
  Whole whole{options};
  auto const place = libtorch::device(world());
  norm->to(place);
  whole->to(place);
  if (options.affine()) {
    torch::NoGradGuard const no_graph;
    for (auto const& [mine, other] : {std::pair{norm->weight, whole->weight}, {norm->bias, whole->bias}}) {
      mine.copy_(random({options.num_features()}, 7));
      other.copy_(mine);
    }
  }
  norm->to(each.parameters);
  for (std::uint64_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(text("step ", step));
    std::vector<std::int64_t> shape{total(each.rows), options.num_features()};
    shape.insert(shape.end(), each.form.begin(), each.form.end());
    auto const all = random(shape, 10 + step).to(each.input).to(torch::kFloat);
    auto const factors = random(shape, 20 + step).to(each.input).to(torch::kFloat);
    auto x = part_of(all, each.rows).to(each.input).contiguous();
    if (each.channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    x = x.detach().clone().requires_grad_();
    auto x_whole = all.clone().requires_grad_();
    norm->zero_grad();
    whole->zero_grad();

    auto const y = norm(x);
    auto const y_whole = whole(x_whole);
    EXPECT_EQ(y.scalar_type(), each.input);
    if (each.channels_last && y.numel() > 0) {
      EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    }
    expect_close(y, part_of(y_whole, each.rows), each.tolerance, "output");
    (y * part_of(factors, each.rows).to(each.input)).sum().backward();
    (y_whole * factors).sum().backward();
    expect_close(x.grad(), part_of(x_whole.grad(), each.rows), each.tolerance, "input's gradient");
    if (options.affine()) {
      double const of_sum = each.tolerance * static_cast<double>(all.numel());
      EXPECT_EQ(norm->weight.grad().scalar_type(), each.parameters);
      expect_close(sum_of_ranks(norm->weight.grad()), whole->weight.grad(), of_sum, "weight's gradient");
      expect_close(sum_of_ranks(norm->bias.grad()), whole->bias.grad(), of_sum, "bias's gradient");
    }
    if (options.track_running_stats()) {
      expect_close(norm->running_mean, whole->running_mean, each.tolerance, "running_mean");
      expect_close(norm->running_var, whole->running_var, each.tolerance, "running_var");
      EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), static_cast<std::int64_t>(step) + 1);
    }
  }
  expect_equal_on_ranks(norm->buffers());
}

TEST(LibtorchSyncBatchNorm, R22IsABatchNormOfAllRanksSamples) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = even(3)});
}
TEST(LibtorchSyncBatchNorm, R22RanksMayHaveDifferentNumbersOfSamples) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = uneven()});
}
TEST(LibtorchSyncBatchNorm, R22ARankMayHaveNoSamples) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = empty_on(0)});
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = empty_on(even(0).size() - 1)});
  expect_same_steps<torch::nn::BatchNorm2d>(
      {.rows = empty_on(0), .input = at::kBFloat16, .parameters = at::kBFloat16, .tolerance = 3e-2});
}
TEST(LibtorchSyncBatchNorm, R22InputsMayHaveAnyNumberOfDimensions) {
  expect_same_steps<torch::nn::BatchNorm1d>({.rows = uneven(), .form = {}});
  expect_same_steps<torch::nn::BatchNorm1d>({.rows = uneven(), .form = {5}});
  expect_same_steps<torch::nn::BatchNorm3d>({.rows = uneven(), .form = {2, 3, 2}});
}
TEST(LibtorchSyncBatchNorm, R22ItsOptionsAreThoseOfBatchNorm) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = uneven(), .options = BatchNormOptions(4).affine(false)});
  expect_same_steps<torch::nn::BatchNorm2d>(
      {.rows = uneven(), .options = BatchNormOptions(4).track_running_stats(false)});
  expect_same_steps<torch::nn::BatchNorm2d>(
      {.rows = uneven(), .options = BatchNormOptions(4).momentum(std::nullopt)});
  expect_same_steps<torch::nn::BatchNorm2d>(
      {.rows = uneven(), .options = BatchNormOptions(4).momentum(0.7).eps(0.1)});
}
TEST(LibtorchSyncBatchNorm, R22ChannelsLastStays) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = uneven(), .channels_last = true});
}
TEST(LibtorchSyncBatchNorm, R22HalfInputsHaveStatisticsOfFloat) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = uneven(), .input = at::kBFloat16, .tolerance = 2e-2});
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = uneven(), .input = at::kHalf, .tolerance = 4e-3});
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = uneven(),
                                             .input = at::kBFloat16,
                                             .parameters = at::kBFloat16,
                                             .tolerance = 3e-2,
                                             .channels_last = true});
}
// 16-bit sums of so many values would be far off.
TEST(LibtorchSyncBatchNorm, R22StatisticsOfHalfInputsCountEverySample) {
  expect_same_steps<torch::nn::BatchNorm2d>({.rows = even(4),
                                             .form = {16, 33},
                                             .input = at::kBFloat16,
                                             .parameters = at::kBFloat16,
                                             .tolerance = 3e-2});
}

// What float would lose.
TEST(LibtorchSyncBatchNorm, R22DoubleStaysDouble) {
  SyncBatchNorm norm(world(), 4);
  torch::nn::BatchNorm1d whole(4);
  norm->to(libtorch::device(world()), torch::kDouble);
  whole->to(libtorch::device(world()), torch::kDouble);
  auto const all = random({total(uneven()), 4}, 1).to(torch::kDouble) + 1e-9;
  expect_near(norm(part_of(all, uneven())), part_of(whole(all), uneven()), 1e-12);
  expect_near(norm->running_var, whole->running_var, 1e-12);
}

// One value of a channel on each rank; with one rank PyTorch's own error says that it takes more.
TEST(LibtorchSyncBatchNorm, R22OneSamplePerRankIsEnough) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  expect_same_steps<torch::nn::BatchNorm1d>({.rows = even(1), .form = {}, .tolerance = 1e-4});
}

TEST(LibtorchSyncBatchNorm, R22FewerThanTwoValuesLeaveRunningStatisticsAlone) {
  if (world().size() == 1) GTEST_SKIP() << "takes two ranks";
  SyncBatchNorm norm(world(), 4);
  norm->to(libtorch::device(world()));
  norm(random({3, 4}, 1));
  auto const before = bytes_of_all({norm->running_mean, norm->running_var});
  for (std::int64_t const rows : {0, 1}) {
    norm(random({rank() == 0 ? rows : 0, 4}, 2));
    EXPECT_TRUE(bytes_of_all({norm->running_mean, norm->running_var}) == before) << rows << " rows";
  }
}

// Rank 0 alone calls it.
TEST(LibtorchSyncBatchNorm, R22EvaluationSendsNothing) {
  for (bool const tracks : {true, false}) {
    SyncBatchNorm norm(world(), BatchNormOptions(4).track_running_stats(tracks));
    torch::nn::BatchNorm2d alone(BatchNormOptions(4).track_running_stats(tracks));
    norm->to(libtorch::device(world()));
    alone->to(libtorch::device(world()));
    if (tracks) {
      norm(random({5, 4, 3, 3}, 1));
      alone->running_mean.copy_(norm->running_mean);
      alone->running_var.copy_(norm->running_var);
      ASSERT_GT(norm->running_mean.abs().sum().item<float>(), 0.0F);
    }
    norm->eval();
    alone->eval();
    if (rank() != 0) continue;
    auto const x = random({5, 4, 3, 3}, 2).requires_grad_();
    auto const y = norm(x);
    expect_near(y, alone(x));
    loss_of(y).backward();
    EXPECT_TRUE(norm->weight.grad().defined());
  }
}

// ---- in a wrapped module

// Of the mean over all ranks' rows, made of what this rank sums up.
torch::Tensor share_of_loss(torch::Tensor const& output, Rows const& rows) {
  return (output * output).sum() * (static_cast<double>(world().size()) / static_cast<double>(total(rows)));
}

void trains_like_one_process(Rows const& rows) {
  torch::manual_seed(17 + world().rank().value());
  auto net = std::make_shared<SyncNet>(SyncBatchNorm(world(), 4));
  auto whole = std::make_shared<WholeNet>(torch::nn::BatchNorm2d(4));
  Wrapped wrapped(world(), *net, small_buckets());
  copy_parameters(*net, *whole);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD expected(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto const all = random_rows(total(rows), 50, step);
    optimizer.zero_grad();
    expected.zero_grad();
    share_of_loss(net->forward(part_of(all, rows)), rows).backward();
    auto const output = whole->forward(all);
    ((output * output).sum() / total(rows)).backward();
    expect_same_gradients(*net, *whole);
    optimizer.step();
    expected.step();
    expect_near(net->norm->running_mean, whole->norm->running_mean);
    expect_near(net->norm->running_var, whole->norm->running_var);
  }
  expect_equal_on_ranks(net->parameters());
  expect_equal_on_ranks(net->buffers());
}

TEST(LibtorchSyncBatchNorm, R22AWrappedModuleTrainsLikeOneProcess) { trains_like_one_process(even(4)); }
TEST(LibtorchSyncBatchNorm, R22AWrappedModuleTrainsWithUnevenRows) { trains_like_one_process(uneven()); }
TEST(LibtorchSyncBatchNorm, R22AWrappedModuleTrainsWhereARankHasNoRows) {
  trains_like_one_process(empty_on(even(0).size() - 1));
}

// Micro-steps send statistics, and no gradients.
TEST(LibtorchSyncBatchNorm, R22NoSyncStillNormalisesOverAllRanks) {
  auto net = std::make_shared<SyncNet>(SyncBatchNorm(world(), 4));
  Wrapped wrapped(world(), *net, small_buckets());
  auto whole = std::make_shared<WholeNet>(torch::nn::BatchNorm2d(4));
  copy_parameters(*net, *whole);
  for (std::uint64_t micro = 0; micro < 3; ++micro) {
    auto const all = random_rows(2 * world().size(), 50, micro);
    auto const guard = wrapped.no_sync(micro < 2);
    loss_of(net->forward(shard(all))).backward();
    loss_of(whole->forward(all)).backward();
  }
  expect_same_gradients(*net, *whole);
}

}  // namespace
}  // namespace ddp::testing

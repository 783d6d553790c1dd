#include "train_mlp/trainer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numbers>

#include "ddp/ddp.hpp"
#include "nn/adam.hpp"
#include "nn/mlp.hpp"

namespace train_mlp {
namespace {

// The loss shown is a mean over all ranks, which costs a small all-reduce: once in so many steps. By number
// of steps and not by time, since every rank must take part.
constexpr std::size_t kStepsPerReport = 20;
constexpr std::size_t kEvaluationBatch = 500;

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The sum over all ranks.
nn::Score add_up(ddp::World const& world, nn::Score const& score) {
  std::array<double, 3> sums{score.loss, static_cast<double>(score.correct),
                             static_cast<double>(score.samples)};
  world.communicator().all_reduce(ddp::view_of(std::span<double>(sums)), ddp::ReduceOp::sum(),
                                  world.stream());
  world.stream().synchronize();
  return {sums[0], static_cast<std::size_t>(sums[1]), static_cast<std::size_t>(sums[2])};
}

void add(nn::Score& total, nn::Score const& score) {
  total.loss += score.loss;
  total.correct += score.correct;
  total.samples += score.samples;
}

double mean_loss(nn::Score const& score) {
  return score.samples == 0 ? 0.0 : score.loss / static_cast<double>(score.samples);
}

double accuracy(nn::Score const& score) {
  return score.samples == 0 ? 0.0 : static_cast<double>(score.correct) / static_cast<double>(score.samples);
}

// Each rank scores a part of `images`; every rank returns the score of all.
nn::Score evaluate(ddp::World const& world, nn::Mlp& net, data::Loader& loader,
                   data::ImageSet const& images) {
  auto const size = static_cast<std::size_t>(world.size());
  std::size_t const end = images.size() * (world.rank().index() + 1) / size;
  nn::Score score;
  for (std::size_t first = images.size() * world.rank().index() / size; first < end;
       first += kEvaluationBatch) {
    net.forward(loader.load(images, first, std::min(kEvaluationBatch, end - first)));
    add(score, net.score());
  }
  return add_up(world, score);
}

std::vector<std::size_t> widths(data::DataSet const& set, Options const& options) {
  std::vector<std::size_t> all{set.train.image_size()};
  all.insert(all.end(), options.hidden.begin(), options.hidden.end());
  all.push_back(data::kClasses);
  return all;
}

std::vector<ParameterRecord> condense(nn::Mlp& net) {
  std::vector<ParameterRecord> records;
  for (nn::Weight const* const weight : net.weights()) {
    double squares = 0;
    double sum = 0;
    for (float const value : weight->value().as<float>()) {
      squares += double{value} * double{value};
      sum += double{value};
    }
    records.push_back({weight->name(), std::sqrt(squares), sum});
  }
  return records;
}

}  // namespace

FinalRecord train(ddp::World const& world, data::DataSet const& set, Options const& options,
                  Progress& progress, RunLog& log) {
  nn::Mlp net(widths(set, options), world.device(), {.seed = options.seed});
  ddp::DistributedDataParallel ddp(world, net.parameters());
  nn::Adam optimizer(net.weights(), {.learning_rate = options.learning_rate});
  ddp::DistributedSampler sampler(set.train.size(), world, {.shuffle = true, .seed = options.seed});
  data::Loader loader(set.train);
  nn::GradientReady const gradient_ready = [&](std::size_t parameter) { ddp.gradient_ready(parameter); };

  std::size_t const steps = (set.train.size() + options.batch - 1) / options.batch;  // of an epoch
  auto const all_steps = static_cast<double>(steps * options.epochs);
  std::size_t steps_done = 0;
  double training_seconds = 0;
  nn::Score test;
  Stopwatch const total;

  for (std::size_t epoch = 1; epoch <= options.epochs; ++epoch) {
    Stopwatch const watch;
    Standing standing{.epoch = epoch, .epochs = options.epochs, .steps = steps};
    nn::Score mine;  // this rank's sums since the last report
    nn::Score all;   // every rank's sums of this epoch
    double rate = 0;
    sampler.set_epoch(epoch);
    for (ddp::Batch const& batch : sampler.global_batches(options.batch)) {
      rate = options.learning_rate / 2 *
             (1 + std::cos(std::numbers::pi * static_cast<double>(steps_done) / all_steps));
      optimizer.set_learning_rate(rate);

      ddp.set_weight(static_cast<double>(batch.size()));
      net.forward(loader.load(set.train, batch));
      net.backward(gradient_ready);
      ddp.synchronize();
      optimizer.step();

      add(mine, net.score());
      ++steps_done;
      standing.step = batch.step + 1;
      if (standing.step % kStepsPerReport != 0 && standing.step != steps) continue;
      add(all, add_up(world, mine));
      mine = {};
      standing.loss = mean_loss(all);
      standing.samples_per_second = static_cast<double>(all.samples) / watch.seconds();
      standing.seconds_left =
          total.seconds() / static_cast<double>(steps_done) * (all_steps - static_cast<double>(steps_done));
      progress.update(standing);
    }
    training_seconds += watch.seconds();
    test = evaluate(world, net, loader, set.test);
    progress.finish_epoch(standing, accuracy(test));
    log.write(EpochRecord{.epoch = epoch,
                          .steps = steps,
                          .loss = standing.loss,
                          .test_loss = mean_loss(test),
                          .test_accuracy = accuracy(test),
                          .learning_rate = rate,
                          .samples_per_second = standing.samples_per_second,
                          .seconds = total.seconds()});
  }
  FinalRecord record{
      .test_accuracy = accuracy(test),
      .test_loss = mean_loss(test),
      .ranks = world.size(),
      .device = ddp::to_string(world.device().kind),
      .samples_per_second = static_cast<double>(set.train.size() * options.epochs) / training_seconds,
      .seconds = total.seconds(),
      .parameters = condense(net)};
  log.write(record);
  return record;
}

}  // namespace train_mlp

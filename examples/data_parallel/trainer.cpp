// To be read beside train_mlp/trainer.cpp: what differs is who splits the batch, and where the gradients
// meet.
#include "data_parallel/trainer.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "data/loader.hpp"
#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "nn/adam.hpp"
#include "nn/modules.hpp"
#include "nn/softmax_cross_entropy.hpp"
#include "train_mlp/summary.hpp"

namespace data_parallel {
namespace {

using train_mlp::accuracy;
using train_mlp::kEvaluationBatch;
using train_mlp::kStepsPerReport;
using train_mlp::mean_loss;
using train_mlp::Stopwatch;

// The loss on each replica: the logits become their own gradients there, and the score stays until somebody
// asks.
class ReplicaLosses {
 public:
  explicit ReplicaLosses(std::size_t replicas) : of_replica_(replicas) {}

  ddp::ReplicaLoss operator()(ddp::Module& replica, ddp::Value const& logits, ddp::Value const& labels,
                              ddp::ReplicaShare const& share) {
    auto& mine = of_replica_[share.replica];
    if (!mine) mine.emplace(replica.shared_stream());
    mine->loss.forward(logits.view(), labels.view(), logits.view(), share.total_rows);
    return {{}, logits};
  }
  // The sum over all replicas since the last call. The host waits.
  [[nodiscard]] nn::Score take() {
    nn::Score all;
    for (auto& each : of_replica_) {
      if (each) train_mlp::add(all, each->loss.take_score());
    }
    return all;
  }

 private:
  struct One {
    explicit One(std::shared_ptr<ddp::Stream> of) : stream(std::move(of)), loss(nn::Context(*stream)) {}
    std::shared_ptr<ddp::Stream> stream;  // outlives the loss's memory
    nn::SoftmaxCrossEntropy loss;
  };
  std::deque<std::optional<One>> of_replica_;
};

nn::Score evaluate(ddp::DataParallelModule& net, data::Loader& loader, std::size_t images) {
  nn::SoftmaxCrossEntropy loss{nn::Context(net.stream())};
  for (std::size_t first = 0; first < images; first += kEvaluationBatch) {
    auto const samples = loader.load(first, std::min(kEvaluationBatch, images - first));
    loss.forward(net.forward(samples.inputs).view(), samples.labels, {});
  }
  return loss.take_score();
}

}  // namespace

train_mlp::FinalRecord train(std::vector<ddp::Device> const& devices, data::DataSet const& set,
                             train_mlp::Options const& options, train_mlp::Progress& progress,
                             train_mlp::RunLog& log) {
  std::shared_ptr<ddp::Stream> const stream = ddp::make_compute_stream(devices.front());
  auto const module = nn::make_mlp_module(train_mlp::widths(set, options), stream, {.seed = options.seed});
  ReplicaLosses losses(devices.size());
  ddp::DataParallel net(module, {.device_ids = devices, .loss = std::ref(losses)});
  nn::Adam optimizer(module->weights(), {.learning_rate = options.learning_rate});
  ddp::DistributedSampler sampler(set.train.size(), ddp::Rank{0}, 1, {.shuffle = true, .seed = options.seed});
  data::Normalization const normalization(set.train);
  data::Loader train_images(set.train, normalization, *stream);
  data::Loader test_images(set.test, normalization, *stream);

  std::size_t const steps = (set.train.size() + options.batch - 1) / options.batch;  // of an epoch
  auto const all_steps = static_cast<double>(steps * options.epochs);
  std::size_t steps_done = 0;
  double training_seconds = 0;
  std::optional<nn::Score> test;
  Stopwatch const total;

  for (std::size_t epoch = 1; epoch <= options.epochs; ++epoch) {
    Stopwatch const watch;
    train_mlp::Standing standing{.epoch = epoch, .epochs = options.epochs, .steps = steps};
    nn::Score all;
    double rate = 0;
    sampler.set_epoch(epoch);
    for (ddp::Batch const& batch : sampler.global_batches(options.batch)) {
      rate = train_mlp::learning_rate_after(steps_done, all_steps, options);
      optimizer.set_learning_rate(rate);

      auto const samples = train_images.load(batch);
      net.forward_loss(samples.inputs, samples.labels);
      net.backward_loss();
      optimizer.step();

      ++steps_done;
      standing.step = batch.step + 1;
      if (standing.step % kStepsPerReport != 0 && standing.step != steps) continue;
      train_mlp::add(all, losses.take());
      standing.loss = mean_loss(all);
      standing.samples_per_second = static_cast<double>(all.samples) / watch.seconds();
      standing.seconds_left =
          total.seconds() / static_cast<double>(steps_done) * (all_steps - static_cast<double>(steps_done));
      progress.update(standing);
    }
    training_seconds += watch.seconds();
    test = evaluate(net, test_images, set.test.size());
    progress.finish_epoch(standing, accuracy(*test));
    log.write(train_mlp::EpochRecord{.epoch = epoch,
                                     .steps = steps,
                                     .loss = standing.loss,
                                     .test_loss = mean_loss(*test),
                                     .test_accuracy = accuracy(*test),
                                     .learning_rate = rate,
                                     .samples_per_second = standing.samples_per_second,
                                     .seconds = total.seconds()});
  }
  train_mlp::FinalRecord record{
      .test_accuracy = accuracy(*test),
      .test_loss = mean_loss(*test),
      .ranks = static_cast<int>(devices.size()),
      .device = ddp::to_string(devices.front().kind),
      .samples_per_second = static_cast<double>(set.train.size() * options.epochs) / training_seconds,
      .seconds = total.seconds(),
      .parameters = train_mlp::condense(module->weights())};
  log.write(record);
  return record;
}

}  // namespace data_parallel

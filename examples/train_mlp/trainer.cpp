#include "train_mlp/trainer.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "data/loader.hpp"
#include "ddp/core/text.hpp"
#include "ddp/ddp.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "nn/adam.hpp"
#include "nn/mlp.hpp"
#include "train_mlp/recovery.hpp"
#include "train_mlp/summary.hpp"

namespace train_mlp {
namespace {

// Adds scores up over all ranks, in memory of the device that they compute on.
class Totals {
 public:
  explicit Totals(ddp::World const& world)
      : world_(world),
        sums_(ddp::zeros({3}, ddp::DType::f64, world.device())),
        host_(ddp::pinned_zeros({3}, ddp::DType::f64)) {}

  /// Collective, and the host waits.
  [[nodiscard]] nn::Score add_up(nn::Score const& mine) {
    auto const values = host_.as<double>();
    values[0] = mine.loss;
    values[1] = static_cast<double>(mine.correct);
    values[2] = static_cast<double>(mine.samples);
    ddp::Stream& stream = world_.stream();
    ddp::copy_elements(sums_, host_, stream);
    world_.communicator().all_reduce(sums_, ddp::ReduceOp::sum(), stream);
    ddp::copy_elements(host_, sums_, stream);
    stream.synchronize();
    return {values[0], static_cast<std::size_t>(values[1]), static_cast<std::size_t>(values[2])};
  }

 private:
  ddp::World const& world_;
  ddp::Tensor sums_;
  ddp::Tensor host_;
};

// Each rank scores a part of the `images` images of `loader`; every rank returns the score of all.
nn::Score evaluate(ddp::World const& world, nn::Mlp& net, data::Loader& loader, std::size_t images,
                   Totals& totals) {
  auto const size = static_cast<std::size_t>(world.size());
  std::size_t const end = images * (world.rank().index() + 1) / size;
  for (std::size_t first = images * world.rank().index() / size; first < end; first += kEvaluationBatch) {
    net.forward(loader.load(first, std::min(kEvaluationBatch, end - first)));
  }
  return totals.add_up(net.take_score());
}

// What a checkpoint keeps of the epoch's sums, exactly.
std::string encode(nn::Score const& score) {
  std::ostringstream out;
  out << std::hexfloat << score.loss << ' ' << score.correct << ' ' << score.samples;
  return std::move(out).str();
}

nn::Score decode(std::string const& text) {
  nn::Score score;
  char* rest = nullptr;
  score.loss = std::strtod(text.c_str(), &rest);
  score.correct = std::strtoull(rest, &rest, 10);
  score.samples = std::strtoull(rest, &rest, 10);
  return score;
}

// How far the training is; the same on every rank.
struct Position {
  std::size_t epoch = 1;
  std::size_t steps = 0;    // of all epochs
  std::size_t samples = 0;  // of this epoch, by all ranks
  nn::Score sums{};         // of this epoch, over all ranks
};

Position position_of(ddp::TrainingPosition const& saved) {
  Position at{.epoch = std::max<std::size_t>(saved.epoch, 1), .steps = saved.step, .samples = saved.samples};
  if (saved.epoch > 0) at.sums = decode(saved.metadata.at("score"));
  return at;
}

// What makes two runs one training.
std::map<std::string, std::string> choices(data::DataSet const& set, Options const& options) {
  return {{"--batch", std::to_string(options.batch)},
          {"--epochs", std::to_string(options.epochs)},
          {"--seed", std::to_string(options.seed)},
          {"--lr", ddp::text(std::setprecision(17), options.learning_rate)},
          {"training images", std::to_string(set.train.size())}};
}

}  // namespace

End train(ddp::World world, data::DataSet const& set, Options const& options, Progress& progress,
          RunLog& log) {
  nn::Mlp net(widths(set, options), world.stream(), {.seed = options.seed});
  ddp::DistributedDataParallelOptions wrapper;
  if (options.shard) wrapper.sharding = ddp::Sharding::optimizer;
  ddp::DistributedDataParallel ddp(world, net.parameters(), wrapper);
  nn::AdamOptions const rates{.learning_rate = options.learning_rate, .skip = ddp.uncommitted()};
  std::optional<nn::Adam> optimizer;
  auto const make_optimizer = [&] {
    if (options.shard) {
      optimizer.emplace(ddp.slices(), world.stream(), rates);
    } else {
      optimizer.emplace(net.weights(), rates);
    }
  };
  make_optimizer();
  ddp::DistributedSampler sampler(set.train.size(), world, {.shuffle = true, .seed = options.seed});
  data::Normalization const normalization(set.train);
  data::Loader train_images(set.train, normalization, world.stream());
  data::Loader test_images(set.test, normalization, world.stream());
  Totals totals(world);
  nn::GradientReady const gradient_ready = [&](std::size_t parameter) { ddp.gradient_ready(parameter); };
  net.reserve(std::max(options.batch, kEvaluationBatch));  // what a graph has recorded stays where it is
  nn::Samples samples;
  ddp::SliceReady const update = [&](ddp::Slice const& slice, ddp::Stream& stream) {
    optimizer->update(slice, stream);
  };
  // On a GPU the new values travel below the backward pass. A CPU has no time to spare in it.
  bool const early = options.shard && world.device().kind == ddp::DeviceKind::cuda;
  if (early) ddp.on_slice_ready(update);
  bool const prepares = options.graph || options.shard;  // the optimizer, before the step
  auto const step = [&] {
    if (options.shard) ddp.zero_gradients();  // those that other ranks have updated
    net.forward(samples);
    net.backward(gradient_ready, early ? nn::Announce::when_weights_read : nn::Announce::at_once);
    ddp.synchronize();
    if (!options.shard) prepares ? optimizer->apply() : optimizer->step();
    if (options.shard && !early) ddp.update_slices(update);
  };
  std::optional<ddp::StepGraph> graph;
  if (options.graph) graph.emplace(ddp, step);
  Recovery recovery(world, options, choices(set, options), progress);
  auto const kept = [&] {
    ddp::CheckpointTensors all{ddp::named_values(ddp.parameters()), optimizer->state()};
    if (options.shard) all.sharded_optimizer = optimizer->sharded_state(ddp);
    return all;
  };
  if (auto end = recovery.begin(kept())) return *end;
  Position now = position_of(recovery.position());
  std::size_t const begin = now.steps;

  std::size_t const steps = (set.train.size() + options.batch - 1) / options.batch;  // of an epoch
  auto const all_steps = static_cast<double>(steps * options.epochs);
  std::size_t samples_done = 0;  // in this run
  double training_seconds = 0;
  std::optional<nn::Score> test;
  Stopwatch const total;

  auto const position = [&]() -> ddp::TrainingPosition {
    return {now.steps, now.epoch, now.samples, {{"score", encode(now.sums)}}};
  };
  std::size_t reached = 0;                // before a loss
  auto const go_on = [&]() -> End {       // in the membership that has begun
    static_cast<void>(net.take_score());  // of steps that broke, or are not added up
    progress = Progress(world.rank() == 0 ? Progress::detect() : Progress::Mode::silent);
    log = world.rank() == 0 && !options.log_json.empty() ? RunLog(options.log_json, true) : RunLog();
    std::string const back = now.steps < reached ? ddp::text(", ", reached - now.steps, " steps back") : "";
    if (world.membership() > 0)
      progress.print(ddp::text("going on with ", world.size(), " ranks after step ", now.steps, back));
    for (; now.epoch <= options.epochs; now = {.epoch = now.epoch + 1, .steps = now.steps}) {
      Stopwatch const watch;
      Standing standing{.epoch = now.epoch, .epochs = options.epochs, .steps = steps};
      double rate = 0;
      sampler.set_epoch(now.epoch);
      sampler.resume_at(now.samples);
      if (auto end = recovery.go_on(position())) return *end;
      std::size_t const samples_before = now.sums.samples;
      for (ddp::Batch const& batch : sampler.global_batches(options.batch)) {
        rate = learning_rate_after(now.steps, all_steps, options);
        optimizer->set_learning_rate(rate);

        ddp.set_weight(static_cast<double>(batch.size()));
        samples = train_images.load(batch);
        if (prepares) optimizer->prepare(static_cast<std::int64_t>(now.steps) + 1);
        std::size_t const size = std::min(options.batch, set.train.size() - now.samples);
        graph&& size == options.batch ? graph->run() : step();  // an epoch's last batch may be smaller

        ++now.steps;
        now.samples += size;
        standing.step = batch.step + 1;
        samples_done += size;
        bool const epoch_ends = standing.step == steps;
        bool const save = recovery.due(now.steps, epoch_ends, epoch_ends && now.epoch == options.epochs);
        if (standing.step % kStepsPerReport != 0 && !epoch_ends && !save) continue;
        add(now.sums, totals.add_up(net.take_score()));
        standing.loss = mean_loss(now.sums);
        standing.samples_per_second =
            static_cast<double>(now.sums.samples - samples_before) / watch.seconds();
        standing.seconds_left = total.seconds() / static_cast<double>(now.steps - begin) *
                                (all_steps - static_cast<double>(now.steps));
        progress.update(standing);
        if (!save) continue;
        if (auto end = recovery.save(position())) return *end;
      }
      training_seconds += watch.seconds();
      standing.step = steps;
      standing.loss = mean_loss(now.sums);
      test = evaluate(world, net, test_images, set.test.size(), totals);
      progress.finish_epoch(standing, accuracy(*test));
      log.write(EpochRecord{.epoch = now.epoch,
                            .steps = steps,
                            .loss = standing.loss,
                            .test_loss = mean_loss(*test),
                            .test_accuracy = accuracy(*test),
                            .learning_rate = rate,
                            .samples_per_second = standing.samples_per_second,
                            .seconds = total.seconds()});
      if (now.epoch < options.epochs) continue;
      if (auto end = recovery.finish()) return *end;
    }
    FinalRecord record{.test_accuracy = accuracy(*test),
                       .test_loss = mean_loss(*test),
                       .ranks = world.size(),
                       .device = ddp::to_string(world.device().kind),
                       .samples_per_second = static_cast<double>(samples_done) / training_seconds,
                       .seconds = total.seconds(),
                       .parameters = condense(net.weights())};
    log.write(record);
    return record;
  };
  if (!options.survive) return go_on();
  std::function<void()> const go_back = [&] {
    make_optimizer();
    now = position_of(recovery.go_back(kept()));
  };
  // make_optimizer() makes it in the same place, so of slices too its counter stays where it is.
  ddp::Replicated alike(world, {&now, optimizer->state()}, options.shard ? go_back : nullptr);
  for (;;) try {
      return go_on();
    } catch (ddp::CommError const& error) {
      reached = now.steps;
      world.rebuild(error, alike);
    }
}

}  // namespace train_mlp

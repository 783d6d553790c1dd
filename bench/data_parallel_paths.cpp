#include "data_parallel_paths.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "ddp/comm/factory.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/memory.hpp"
#include "nn/random.hpp"

namespace ddp::bench {
namespace {

constexpr nn::SgdOptions kSgd{.learning_rate = 1e-4, .momentum = 0.9};
constexpr std::size_t kMostClasses = 256;  // labels are u8

std::shared_ptr<nn::Sequential> make_net(DataParallelSizes const& sizes,
                                         std::shared_ptr<Stream> const& stream) {
  return nn::make_mlp_module(std::vector<std::size_t>(sizes.layers + 1, sizes.width), stream,
                             {.seed = 1, .final_relu = true});
}

Tensor make_inputs(std::size_t rows, std::size_t width, nn::Context const& context) {
  constexpr std::size_t kPeriod = std::size_t{1} << 20;
  nn::Random const random(7, 0);
  std::vector<float> period(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) period[i] = static_cast<float>(random.uniform(i, -1.0, 1.0));
  std::vector<float> all(rows * width);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = period[i % kPeriod];
  Tensor const inputs = context.zeros({rows, width}, DType::f32);
  TensorView host = view_of(std::span(all));
  host.shape = {rows, width};
  context.upload(host, inputs);
  return inputs;
}

Tensor make_labels(std::size_t rows, std::size_t width, nn::Context const& context) {
  std::vector<std::uint8_t> all(rows);
  for (std::size_t i = 0; i < rows; ++i)
    all[i] = static_cast<std::uint8_t>(i * 31 % std::min(width, kMostClasses));
  Tensor const labels = context.zeros(Shape{rows}, DType::u8);
  context.upload(view_of(std::span(all)), labels);
  return labels;
}

Bytes bytes_of(Module& module) {
  Bytes all{};
  for (Parameter const& parameter : module.parameters()) all.value += parameter.value.bytes();
  return all;
}

}  // namespace

double TrainingPath::milliseconds(std::function<void()> const& work) {
  wait();
  auto const begin = std::chrono::steady_clock::now();
  work();
  wait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// The loss on each replica.
class DataParallelPath::Losses {
 public:
  explicit Losses(std::size_t replicas) : of_replica_(replicas) {}
  ReplicaLoss compute(Module& replica, Value const& logits, Value const& labels, ReplicaShare const& share) {
    auto& mine = of_replica_[share.replica];
    if (!mine) mine = std::make_unique<One>(replica.shared_stream());
    mine->loss.forward(logits.view(), labels.view(), logits.view(), share.total_rows);
    return {{}, logits};
  }

 private:
  struct One {
    explicit One(std::shared_ptr<Stream> of) : stream(std::move(of)), loss(nn::Context(*stream)) {}
    std::shared_ptr<Stream> stream;
    nn::SoftmaxCrossEntropy loss;
  };
  std::vector<std::unique_ptr<One>> of_replica_;
};

DataParallelPath::DataParallelPath(DataParallelSizes const& sizes, std::vector<Device> devices)
    : stream_(make_compute_stream(devices.front())),
      net_(make_net(sizes, stream_)),
      losses_(std::make_unique<Losses>(devices.size())) {
  nn::Context const context(*stream_);
  std::size_t const rows = sizes.rows * devices.size();
  inputs_ = make_inputs(rows, sizes.width, context);
  labels_ = make_labels(rows, sizes.width, context);
  auto loss = [this](Module& replica, Value const& output, Value const& target, ReplicaShare const& share) {
    return losses_->compute(replica, output, target, share);
  };
  parallel_ = std::make_unique<DataParallel<nn::Sequential>>(
      net_, DataParallelOptions{.device_ids = std::move(devices), .loss = std::move(loss)});
  optimizer_ = std::make_unique<nn::Sgd>(net_->weights(), kSgd);
}

DataParallelPath::~DataParallelPath() = default;

void DataParallelPath::step() {
  static_cast<void>(parallel_->forward_loss(inputs_, labels_));
  static_cast<void>(parallel_->backward_loss());
  optimizer_->step();
}

void DataParallelPath::wait() { stream_->synchronize(); }
Bytes DataParallelPath::parameters() { return bytes_of(*net_); }

DistributedPath::DistributedPath(DataParallelSizes const& sizes, World const& world)
    : world_(world),
      net_(make_net(sizes, std::shared_ptr<Stream>(std::shared_ptr<void>(), &world_.stream()))),
      ddp_(std::make_unique<DistributedDataParallel>(world_, net_->parameters())) {
  nn::Context const context(world_.stream());
  loss_ = std::make_unique<nn::SoftmaxCrossEntropy>(context);
  optimizer_ = std::make_unique<nn::Sgd>(net_->weights(), kSgd);
  inputs_ = make_inputs(sizes.rows, sizes.width, context);
  labels_ = make_labels(sizes.rows, sizes.width, context);
}

DistributedPath::~DistributedPath() = default;

void DistributedPath::step() {
  Value const logits = net_->forward(inputs_);
  loss_->forward(logits.view(), labels_, logits.view());
  static_cast<void>(
      net_->backward(logits, [this](std::size_t parameter) { ddp_->gradient_ready(parameter); }));
  ddp_->synchronize();
  optimizer_->step();
}

void DistributedPath::wait() { world_.stream().synchronize(); }
Bytes DistributedPath::parameters() { return bytes_of(*net_); }

struct PlainBroadcast::Each {
  Device device;
  std::shared_ptr<ControlPlane> control;
  std::unique_ptr<Stream> stream;
  Tensor memory;
  std::unique_ptr<Communicator> communicator;
};

PlainBroadcast::PlainBroadcast(std::vector<Device> const& devices, Bytes bytes) {
  int const ranks = static_cast<int>(devices.size());
  bool const on_cpu = devices.front().kind == DeviceKind::cpu;
  auto const control = make_in_process_control(ranks);
  auto in_process = make_in_process_communicators(on_cpu ? ranks : 1);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    auto one = std::make_unique<Each>();
    one->device = on_cpu ? Device{} : devices[i];
    one->control = control[i];
    if (on_cpu) one->communicator = std::move(in_process[i]);
    each_.push_back(std::move(one));
  }
  everywhere([bytes](Each& one) {
    one.stream = make_compute_stream(one.device);
    one.memory = zeros(Shape{bytes.value / sizeof(float)}, DType::f32, one.device);
    if (!one.communicator) one.communicator = make_communicator(one.control, one.device);
  });
}

PlainBroadcast::~PlainBroadcast() {
  everywhere([](Each& one) {
    one.stream->synchronize();
    one.communicator.reset();
  });
  for (auto const& one : each_) one->control->leave();
}

void PlainBroadcast::everywhere(std::function<void(Each&)> const& work) {
  std::vector<std::exception_ptr> errors(each_.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < each_.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        DeviceGuard const guard(each_[i]->device);
        work(*each_[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto const& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void PlainBroadcast::run(std::size_t times) {
  everywhere([times](Each& one) {
    for (std::size_t i = 0; i < times; ++i) one.communicator->broadcast(one.memory, Rank{0}, *one.stream);
  });
}

void PlainBroadcast::wait() {
  for (auto const& one : each_) one->stream->synchronize();
}

}  // namespace ddp::bench

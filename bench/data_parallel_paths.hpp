// The two ways through one step, and what is in it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/data_parallel/data_parallel.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "nn/modules.hpp"
#include "nn/sgd.hpp"
#include "nn/softmax_cross_entropy.hpp"

namespace ddp::bench {

/// Of one measurement, with everything decided.
struct DataParallelSizes {
  std::size_t layers = 0;
  std::size_t width = 0;
  std::size_t rows = 0;  ///< of each device
};

/// One way to do a training step.
class TrainingPath {
 public:
  virtual ~TrainingPath() = default;
  virtual void step() = 0;                       ///< Enqueues one.
  virtual void wait() = 0;                       ///< Until nothing is under way.
  [[nodiscard]] virtual Bytes parameters() = 0;  ///< Of all values.
  /// Milliseconds of `work`, from idle to idle.
  [[nodiscard]] double milliseconds(std::function<void()> const& work);
};

/// DataParallel over these devices.
class DataParallelPath final : public TrainingPath {
 public:
  DataParallelPath(DataParallelSizes const& sizes, std::vector<Device> devices);
  ~DataParallelPath() override;
  void step() override;
  void wait() override;
  [[nodiscard]] Bytes parameters() override;
  void refresh() { parallel_->refresh(); }
  [[nodiscard]] Stream& stream() noexcept { return *stream_; }

 private:
  class Losses;
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<nn::Sequential> net_;
  std::unique_ptr<Losses> losses_;
  std::unique_ptr<DataParallel<nn::Sequential>> parallel_;
  std::unique_ptr<nn::Sgd> optimizer_;
  Tensor inputs_;
  Tensor labels_;
};

/// DistributedDataParallel on this rank.
class DistributedPath final : public TrainingPath {
 public:
  DistributedPath(DataParallelSizes const& sizes, World const& world);
  ~DistributedPath() override;
  void step() override;
  void wait() override;
  [[nodiscard]] Bytes parameters() override;

 private:
  World world_;
  std::shared_ptr<nn::Sequential> net_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<nn::SoftmaxCrossEntropy> loss_;
  std::unique_ptr<nn::Sgd> optimizer_;
  Tensor inputs_;
  Tensor labels_;
};

/// Broadcasts of so many bytes to all of these devices, a thread each.
class PlainBroadcast {
 public:
  PlainBroadcast(std::vector<Device> const& devices, Bytes bytes);
  ~PlainBroadcast();
  void run(std::size_t times);  ///< Enqueues so many on every device.
  void wait();

 private:
  struct Each;
  std::vector<std::unique_ptr<Each>> each_;
  void everywhere(std::function<void(Each&)> const& work);
};

}  // namespace ddp::bench

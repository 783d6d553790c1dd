// Implementation of DistributedDataParallel for a module of PyTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/libtorch/bucket_hooks.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"
#include "ddp/parallel/autograd_support.hpp"
#include "libtorch/ddp/backward_pass.hpp"
#include "libtorch/ddp/gradient_hook.hpp"
#include "libtorch/ddp/module_buffers.hpp"
#include "libtorch/ddp/program_changes.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {

class DistributedDataParallel::Engine final : public std::enable_shared_from_this<Engine> {
 public:
  static std::shared_ptr<Engine> make(World world, torch::nn::Module& module, Options options);
  /// Removes the hooks and releases the group. Callbacks that autograd still holds do nothing from now on.
  void close() noexcept;

  /// The gradient of parameter `index` is accumulated in parameter.grad().
  void accumulated(std::size_t index, at::Tensor const& parameter);
  void synchronize();
  void begin_forward();
  void sync_buffers();
  [[nodiscard]] at::Tensor gradient_norm() const { return scalar(runtime_->gradient_norm()); }
  [[nodiscard]] at::Tensor found_nonfinite() const { return scalar(runtime_->found_nonfinite()); }
  [[nodiscard]] at::Tensor uncommitted() const {
    TensorView const word = runtime_->uncommitted();
    return word.data == nullptr ? at::Tensor() : scalar(word);
  }
  void join(std::function<void()> const& update);
  void set_comm_hook(CommHook hook);
  void on_bucket_ready(BucketReady update);
  void mark_buffers_dirty() noexcept { buffers_->all_changed(); }
  // For StepGraph.
  void run_aside(std::function<void()> const& work);
  [[nodiscard]] bool is_capturing() const { return streams_->is_capturing(); }
  /// Facts about a recorded step that replays need. By parameter: `before`: the step sends a sum of
  /// micro-steps before it; `here`: the step computes a gradient itself.
  struct Recorded {
    std::vector<bool> before, here;
    bool sends = false;
    std::string loose;  ///< a parameter whose recorded micro-steps add up outside of its bucket
  };
  [[nodiscard]] Recorded record(std::function<void()> const& step);
  void renew_accumulators();
  void check_replay(Recorded const& recorded) const;
  void replayed(Recorded const& recorded);
  /// What micro-steps have left: a recording changes it, and a failed one restores it.
  struct Sums {
    std::vector<at::Tensor> gradients;
    std::vector<bool> unsent;
  };
  [[nodiscard]] Sums sums() const;
  void restore(Sums const& sums);
  // For ShardedOptimizer.
  struct Piece {
    std::size_t index = 0;   ///< of the parameter, in trained()
    at::Tensor parameter;    ///< the module's
    at::Tensor values;       ///< this rank's elements of it
    at::Tensor gradient;     ///< of the same elements, once they are averaged
    std::size_t offset = 0;  ///< element of the parameter, in its order of memory, where it begins
  };
  /// By slice of the runtime.
  [[nodiscard]] std::vector<std::vector<Piece>> pieces();
  [[nodiscard]] std::vector<ModuleTensor> const& trained() const noexcept { return tensors_.trained; }
  void update_slices(std::function<void(std::size_t slice)> const& update);
  void on_slice_ready(std::function<void(std::size_t slice)> update);
  [[nodiscard]] World const& world() const noexcept { return world_; }
  [[nodiscard]] ddp::DistributedDataParallel& runtime() noexcept { return *runtime_; }
  [[nodiscard]] std::uint64_t verify_every() const noexcept { return options_.runtime.verify_every; }
  [[nodiscard]] std::shared_ptr<int> const& no_sync_depth() const noexcept { return no_sync_depth_; }

 private:
  struct Trained {
    ModuleTensor parameter;
    TensorView value;           // where the runtime has its values
    at::Tensor kept;            // that memory
    at::Tensor bound;           // its place in a bucket, in the parameter's form
    TensorView gradient;        // the same for the runtime; `data` is replaced for memory of autograd's own
    std::uint64_t updated = 0;  // the last step in which update_ was given it
    std::uint64_t arrived = 0;  // the last step, from 1, in which a gradient of this rank was given
    at::Tensor held;            // grad() of earlier steps, if this step gave no gradient
    bool reduced = false;       // some rank had a gradient for it in the last step
    bool unsent = false;        // a gradient was accumulated under no_sync() and is in no sum yet
  };

  Engine(World world, torch::nn::Module& module, Options options);
  void build();
  void prepare();
  void watch_passes();
  void tell_of_buffers();
  // For World::rebuild().
  [[nodiscard]] AutogradSupport::Following following();
  void settle();
  void go_on_rebuilt();
  [[nodiscard]] std::vector<Parameter> parameters();

  void record_micro_step(std::size_t index, at::Tensor const& gradient);
  void require_used_before(Trained const& trained) const;
  void give(std::size_t index, at::Tensor& gradient);
  void hold(std::size_t index, at::Tensor const& gradient);
  [[nodiscard]] static Tensor as_source(Trained const& trained, at::Tensor const& source);
  [[nodiscard]] at::Tensor sendable(Trained const& trained, at::Tensor const& gradient) const;
  void give_rest();
  void send_rest();
  void end_step();
  void go_on();
  template <class Body>
  void or_abandon(Body const& body);
  void drop_gradients_of_no_step();
  void abandon(std::string const& why) noexcept;
  void check_module();
  void check_value(std::size_t index);
  void bind_gradients();
  // Whether any rank has a gradient for it in the step that ends, or it gets a gradient of zeros.
  [[nodiscard]] bool has_gradient(std::size_t index);
  void run_hook(CommHook const& hook, ddp::GradientBucket const& bucket);
  [[nodiscard]] bool compares_weights();
  void update(ReducedBucket const& bucket);
  // Calls `work`, of what `from` was given, with PyTorch's current stream being `stream`.
  template <class Work>
  void run_update(Stream& stream, char const* from, std::size_t bucket, Work const& work);
  [[nodiscard]] bool is_sharded() const noexcept { return options_.runtime.sharding == Sharding::optimizer; }
  void require_cleared(std::size_t index, bool was_cleared) const;
  void require_gradients_in_place() const;
  void update_rest();
  [[nodiscard]] at::Tensor scalar(TensorView const& word) const;
  [[noreturn]] void refuse_change(Trained const& trained, at::Tensor const& now, char const* what) const;

  World world_;
  std::shared_ptr<torch::nn::Module const> module_;
  Options options_;
  ModuleTensors tensors_;
  std::shared_ptr<int> no_sync_depth_ = std::make_shared<int>(0);
  std::shared_ptr<BackwardPass> pass_;
  std::unique_ptr<GpuStreams> streams_;
  std::optional<BufferWatch> buffers_;
  std::optional<ProgramChanges> changes_;
  std::vector<Trained> trained_;   // where it is from prepare() on
  Recorded* recording_ = nullptr;  // while a step is recorded: its results cannot be read
  BucketReady update_;
  std::function<void(std::size_t slice)> slice_update_;
  std::vector<std::vector<at::Tensor>> updates_;         // by bucket, of one step
  std::uint64_t step_ = 1;                               // the one that is next or under way
  std::uint64_t rest_given_ = 0;                         // the last step whose give_rest() was called
  std::uint64_t steps_before_ = 0;                       // runtime_->steps() when the World was rebuilt
  std::optional<ddp::DistributedDataParallel> runtime_;  // destroyed before what it refers to
};

template <class Body>
void DistributedDataParallel::Engine::or_abandon(Body const& body) {
  try {
    body();
  } catch (std::exception const& error) {
    abandon(error.what());
    throw;
  }
}

}  // namespace ddp::libtorch

// What all ranks hold alike, beside the model.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/parallel/world.hpp"
#include "ddp/reducer/parameter.hpp"

namespace DDP_EXPORT ddp {

class HostValues;

/// The rest of what the next step depends on: the optimizer's state, how far the training is.
/// World::rebuild() gives it to ranks that are behind, together with the model.
///
///     ddp::Replicated state(world, {optimizer.state(), &position});
///
/// The program changes it and the model between the same two collectives: what a rank has when a collective
/// fails is then that of a whole number of steps.
class Replicated {
 public:
  /// One piece of it, in memory that must outlive the Replicated.
  class Part {
   public:
    Part(std::vector<NamedTensor> tensors) : tensors_(std::move(tensors)) {}  ///< As optimizers tell theirs.
    Part(TensorView const& tensor) : tensors_{{"", tensor, {}}} {}            ///< One tensor.
    /// A value of the host's that is copied bit by bit.
    template <class T>
    requires std::is_trivially_copyable_v<T> Part(T* value)
        : Part(TensorView{value, Shape{sizeof(T)}, DType::u8, Device{}}) {}

   private:
    friend class Replicated;
    std::vector<NamedTensor> tensors_;
  };

  /// Collective: throws CommError(mismatch) on every rank, with the first difference, if names, shapes or
  /// dtypes differ. Values are neither compared nor sent. Warns of what World::rebuild() would refuse, since
  /// one would like to know that before a rank is lost: so make it last. In a process that stands for a lost
  /// rank (World::is_newcomer()) it waits instead until the others take this rank in, for at most
  /// WorldOptions::timeout, and the model, its buffers and these tensors get their values; throws as
  /// World::rebuild() does, and CommError(mismatch) if they have others than the model and tensors here.
  ///
  /// `go_back`: brings the model, its optimizer and these tensors back to the last checkpoint, by collectives
  /// of the World, such as Checkpoint::restore(). World::rebuild() calls it last, on every rank, where no
  /// rank has the whole state: always with Sharding::optimizer, as a lost rank's part of the optimizer is
  /// nowhere else; then DistributedDataParallel::slices() are other ones, and the optimizer and its
  /// Checkpoint are to be made anew. And where on_bucket_ready() has updated a part of the model on every
  /// rank. It is called again if a rank is lost in it; what else it throws,
  /// World::rebuild() does.
  Replicated(World const& world, std::vector<Part> const& parts, std::function<void()> go_back = {});

  [[nodiscard]] std::span<TensorView const> tensors() const noexcept { return tensors_; }  ///< All of them.
  [[nodiscard]] std::string const& form() const noexcept { return form_; }  ///< A line for each of them.
  /// As the constructor got it.
  [[nodiscard]] std::function<void()> const& go_back() const noexcept { return go_back_; }

 private:
  std::vector<TensorView> tensors_;
  std::string form_;
  std::function<void()> go_back_;
  std::shared_ptr<HostValues> host_values_;
};

}  // namespace ddp

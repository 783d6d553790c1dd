// Which buffers of a module are sent after a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {

/// The buffers of a wrapped module, and after them its frozen parameters: equal at the start, and never sent
/// again. The buffers that are sent are the same on every rank, whatever a rank's program does with its own:
/// running statistics always, others if some rank has changed a buffer of the same module.
class BufferWatch {
 public:
  BufferWatch(ModuleTensors const& tensors, Device own);

  /// For the runtime's constructor.
  [[nodiscard]] std::vector<NamedTensor> views() const;
  /// How many flags say() writes.
  [[nodiscard]] std::size_t flags() const noexcept { return flags_; }
  /// Writes which buffers this rank has changed since the last call; with `records` the next call says them
  /// again. Throws Error(invalid_state) for a buffer of another form.
  void say(std::span<std::uint8_t> flags, bool records);
  /// Marks in the runtime the buffers to send, by `told`, the combined flags of say() of all ranks.
  void mark(ddp::DistributedDataParallel& runtime, std::span<std::uint8_t const> told);
  /// Marks all.
  void mark_all(ddp::DistributedDataParallel& runtime);
  /// All buffers count as changed, maybe by something that PyTorch does not know of.
  void all_changed() noexcept { all_changed_ = true; }
  /// Forgets changes until now: every rank has the values.
  void start_again();

 private:
  struct Buffer {
    ModuleTensor now;   // the module's tensor
    at::Tensor memory;  // where the runtime has it
    std::int64_t version = 0;
  };
  struct Group {  // of one module
    std::size_t first = 0;
    std::size_t end = 0;
    bool always = false;  // written by kernels that do not count versions
  };
  [[nodiscard]] bool changed(Group const& group) const;
  static void check_form(Buffer const& buffer);
  void mark(Group const& group, ddp::DistributedDataParallel& runtime);

  Device own_;
  std::vector<Buffer> buffers_;
  std::vector<Group> groups_;
  std::size_t flags_ = 0;
  bool all_changed_ = false;
  std::vector<ModuleTensor> frozen_;
};

}  // namespace ddp::libtorch

// Which buffers of a module have changed, and have to be sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/parallel/distributed_data_parallel.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {

/// The buffers of a wrapped module, and after them its frozen parameters: equal at the start, and never sent
/// again.
class BufferWatch {
 public:
  BufferWatch(ModuleTensors const& tensors, Device own);

  /// For the runtime's constructor.
  [[nodiscard]] std::vector<NamedTensor> views() const;
  /// Marks, in the runtime, which have changed since the last call.
  void mark_changed(ddp::DistributedDataParallel& runtime);
  /// What was changed until now is known on every rank.
  void start_again();

 private:
  struct Buffer {
    ModuleTensor now;   // the module's tensor
    at::Tensor memory;  // where the runtime has it
    std::int64_t version = 0;
    bool unseen = false;  // written by kernels that do not count versions
  };
  struct Group {
    torch::nn::Module const* module = nullptr;
    std::size_t first = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] bool changed(Group const& group) const;
  void follow(Buffer& buffer);

  Device own_;
  std::vector<Buffer> buffers_;
  std::vector<Group> groups_;
  std::vector<ModuleTensor> frozen_;
};

}  // namespace ddp::libtorch

#include "libtorch/module_buffers.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <string_view>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::libtorch {
namespace {

// Batch and instance normalisation write these through pointers.
bool is_running_statistic(std::string_view name) {
  return name.ends_with("running_mean") || name.ends_with("running_var");
}

}  // namespace

BufferWatch::BufferWatch(ModuleTensors const& tensors, Device own) : own_(own), frozen_(tensors.frozen) {
  for (ModuleBuffers const& part : tensors.buffers) {
    std::size_t const first = buffers_.size();
    for (ModuleTensor const& buffer : part.buffers) {
      buffers_.push_back(
          {buffer, buffer.tensor.detach(), version_of(buffer.tensor), is_running_statistic(buffer.name)});
    }
    groups_.push_back({part.module, first, buffers_.size()});
  }
}

std::vector<NamedTensor> BufferWatch::views() const {
  std::vector<NamedTensor> views;
  auto const add = [&](ModuleTensor const& tensor, char const* kind) {
    StridedView view = view_of(tensor.tensor, own_, text(kind, " \"", tensor.name, "\""));
    views.push_back({tensor.name, view.value, std::move(view.strides)});
  };
  for (Buffer const& buffer : buffers_) add(buffer.now, "buffer");
  for (ModuleTensor const& parameter : frozen_) add(parameter, "frozen parameter");
  return views;
}

bool BufferWatch::changed(Group const& group) const {
  bool const training = group.module->is_training();
  for (std::size_t b = group.first; b < group.end; ++b) {
    Buffer const& buffer = buffers_[b];
    if (training && buffer.unseen) return true;
    if (version_of(buffer.now.tensor) != buffer.version) return true;
    if (buffer.now.tensor.const_data_ptr() != buffer.memory.const_data_ptr()) return true;
  }
  return false;
}

// torch::load() gives a buffer new memory: its values go back to where every rank's runtime has it.
void BufferWatch::follow(Buffer& buffer) {
  at::Tensor& now = buffer.now.tensor;
  if (now.const_data_ptr() == buffer.memory.const_data_ptr()) return;
  if (now.scalar_type() != buffer.memory.scalar_type() || now.device() != buffer.memory.device() ||
      now.sizes() != buffer.memory.sizes()) {
    throw Error(ErrorCode::invalid_state,
                text("buffer \"", buffer.now.name, "\" was ",
                     c10::str(buffer.memory.toString(), buffer.memory.sizes()),
                     " when the module was wrapped, and is ", c10::str(now.toString(), now.sizes()),
                     " now. Convert and move a module before it is wrapped"));
  }
  at::NoGradGuard const no_graph;
  buffer.memory.copy_(now);
  now.set_data(buffer.memory);
}

void BufferWatch::mark_changed(ddp::DistributedDataParallel& runtime) {
  for (Group const& group : groups_) {
    if (!changed(group)) continue;
    for (std::size_t b = group.first; b < group.end; ++b) {
      follow(buffers_[b]);
      runtime.mark_buffer_dirty(b);
    }
  }
  start_again();
}

void BufferWatch::start_again() {
  for (Buffer& buffer : buffers_) buffer.version = version_of(buffer.now.tensor);
}

}  // namespace ddp::libtorch

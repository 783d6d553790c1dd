#include "libtorch/ddp/module_buffers.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

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
  for (auto const& part : tensors.buffers) {
    std::size_t const first = buffers_.size();
    bool always = false;
    for (ModuleTensor const& buffer : part) {
      buffers_.push_back({buffer, buffer.tensor.detach(), version_of(buffer.tensor)});
      always = always || is_running_statistic(buffer.name);
    }
    groups_.push_back({first, buffers_.size(), always});
    if (!always) ++flags_;
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
  for (std::size_t b = group.first; b < group.end; ++b) {
    Buffer const& buffer = buffers_[b];
    if (version_of(buffer.now.tensor) != buffer.version) return true;
    if (buffer.now.tensor.const_data_ptr() != buffer.memory.const_data_ptr()) return true;
  }
  return false;
}

void BufferWatch::check_form(Buffer const& buffer) {
  at::Tensor const& now = buffer.now.tensor;
  if (now.const_data_ptr() == buffer.memory.const_data_ptr()) return;
  if (now.scalar_type() == buffer.memory.scalar_type() && now.device() == buffer.memory.device() &&
      now.sizes() == buffer.memory.sizes()) {
    return;
  }
  throw Error(
      ErrorCode::invalid_state,
      text("buffer \"", buffer.now.name, "\" was ", c10::str(buffer.memory.toString(), buffer.memory.sizes()),
           " when the module was wrapped, and is ", c10::str(now.toString(), now.sizes()),
           " now. Convert and move a module before it is wrapped"));
}

void BufferWatch::say(std::span<std::uint8_t> flags, bool records) {
  for (Buffer const& buffer : buffers_) check_form(buffer);
  std::size_t next = 0;
  for (Group const& group : groups_) {
    if (!group.always) flags[next++] = all_changed_ || changed(group) ? 1 : 0;
  }
  if (!records) start_again();
}

// torch::load() gives a buffer new memory: copies its values back to the memory that the runtime knows.
void BufferWatch::mark(Group const& group, ddp::DistributedDataParallel& runtime) {
  for (std::size_t b = group.first; b < group.end; ++b) {
    Buffer& buffer = buffers_[b];
    check_form(buffer);
    if (buffer.now.tensor.const_data_ptr() != buffer.memory.const_data_ptr()) {
      at::NoGradGuard const no_graph;
      buffer.memory.copy_(buffer.now.tensor);
      buffer.now.tensor.set_data(buffer.memory);
    }
    runtime.mark_buffer_dirty(b);
  }
}

void BufferWatch::mark(ddp::DistributedDataParallel& runtime, std::span<std::uint8_t const> told) {
  std::size_t next = 0;
  for (Group const& group : groups_) {
    if (group.always || told[next++] != 0) mark(group, runtime);
  }
}

void BufferWatch::mark_all(ddp::DistributedDataParallel& runtime) {
  for (Group const& group : groups_) mark(group, runtime);
  start_again();
}

void BufferWatch::start_again() {
  for (Buffer& buffer : buffers_) buffer.version = version_of(buffer.now.tensor);
  all_changed_ = false;
}

}  // namespace ddp::libtorch

#include "ddp/libtorch/data_parallel.hpp"

#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <string>
#include <utility>

#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/replicas/replica_copies.hpp"
#include "libtorch/replicas/replica_threads.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// "Float [8, 3]".
std::string dtype_and_sizes(at::Tensor const& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), " ", tensor.sizes()) : "undefined";
}

std::vector<Device> chosen_devices(DataParallelOptions const& options) {
  if (options.device_ids) return *options.device_ids;
  std::vector<Device> all;
  for (LogicalDevice const& gpu : logical_devices()) all.push_back(gpu.device);
  return all;
}

c10::Device place_of(Device device) {
  if (device.kind == DeviceKind::cpu) return c10::Device(c10::DeviceType::CPU);
  auto const index = cuda_index(device);
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) ||
      c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount() <= index) {
    throw Error(ErrorCode::unsupported,
                text("DataParallel: PyTorch does not see ", device, ", its cuda:", int{index},
                     "; expected a PyTorch with CUDA that sees the same GPUs as ddp"));
  }
  return {c10::DeviceType::CUDA, index};
}

std::vector<c10::Device> places_of(std::vector<Device> const& devices) {
  require_devices(devices);
  std::vector<c10::Device> places;
  for (Device const device : devices) {
    require(device.kind == devices[0].kind,
            [&] { return text("device_ids must be GPUs only, or CPUs only, found ", join(devices, ", ")); });
    places.push_back(place_of(device));
  }
  return places;
}

void warn_of_imbalance(std::vector<Device> const& devices) {
  auto const memory = [](Device device) {
    auto const& limit = logical_device(device).limit;
    return limit ? limit->value : memory_info(device).total.value;
  };
  auto const cores = [](Device device) { return static_cast<std::size_t>(logical_device(device).sms); };
  auto const warned = [&](auto const& size, char const* what) {
    auto const less = [&](Device a, Device b) { return size(a) < size(b); };
    auto const [small, large] = std::minmax_element(devices.begin(), devices.end(), less);
    if (4 * size(*small) >= 3 * size(*large)) return false;
    log(LogLevel::warning,
        text("replicas are only as fast as the slowest: ", *small, " has less than 75 % of ", *large, "'s ",
             what, "; to exclude it, leave ", *small, " out of device_ids",
             small->kind == DeviceKind::cuda ? ", or out of CUDA_VISIBLE_DEVICES" : ""));
    return true;
  };
  if (!warned(memory, "memory")) warned(cores, "cores");
}

}  // namespace

namespace detail {

class Replicas::State {
 public:
  State(std::shared_ptr<torch::nn::Module> module, std::vector<Device> const& devices,
        std::vector<c10::Device> const& places, DataParallelOptions const& options)
      : copies_(std::move(module), devices, places),
        threads_(devices, places),
        streams_(devices[0]),
        output_(place_of(options.output_device.value_or(devices[0]))),
        dim_(static_cast<std::int64_t>(options.dim)) {}

  [[nodiscard]] std::vector<Device> const& devices() const noexcept { return threads_.devices(); }
  [[nodiscard]] std::vector<std::vector<at::Tensor>> scatter(std::vector<NestedTensor> const& inputs) const;
  void run(std::size_t count, std::function<void(std::size_t, torch::nn::Module&)> const& task);
  [[nodiscard]] std::vector<at::Tensor> gather(std::vector<std::vector<NestedTensor>> const& outputs);

 private:
  void refuse_capture() const;
  [[nodiscard]] std::size_t chunks_of(std::vector<NestedTensor> const& inputs) const;
  [[nodiscard]] at::Tensor together(std::vector<NestedTensor> const& parts);
  void require_alike(std::vector<NestedTensor> const& parts) const;

  ReplicaCopies copies_;
  ReplicaThreads threads_;
  GpuStreams streams_;
  c10::Device output_;
  std::int64_t dim_;
  bool warned_ = false;  // of scalars
};

std::size_t Replicas::State::chunks_of(std::vector<NestedTensor> const& inputs) const {
  NestedTensor const* first = nullptr;
  std::int64_t chunks = 0;
  auto const count = static_cast<std::int64_t>(devices().size());
  for (NestedTensor const& input : inputs) {
    if (!input.tensor.defined()) continue;
    require(dim_ < input.tensor.dim(), [&] {
      return text("DataParallel: ", input.where, " is ", dtype_and_sizes(input.tensor),
                  ", which has no dimension ", dim_,
                  " to be split along; give it one, or pass what every replica is to share as something "
                  "else than a tensor");
    });
    std::int64_t const rows = input.tensor.size(dim_);
    std::int64_t const each = (rows + count - 1) / count;
    std::int64_t const found = rows == 0 ? 1 : (rows + each - 1) / each;
    if (first == nullptr) {
      first = &input;
      chunks = found;
    }
    require(found == chunks, [&] {
      return text("DataParallel: along dimension ", dim_, " and over ", count, " devices, ", first->where,
                  " (", dtype_and_sizes(first->tensor), ") falls into ", chunks,
                  chunks == 1 ? " chunk" : " chunks", " and ", input.where, " (",
                  dtype_and_sizes(input.tensor), ") into ", found,
                  "; every tensor needs as many chunks as the others: give them the same extent there");
    });
  }
  require(first != nullptr,
          "DataParallel: none of the inputs is a tensor, or has one, so there is no batch to split; expected "
          "at least one");
  return static_cast<std::size_t>(chunks);
}

// Call it before anything is enqueued, which would break the capture.
void Replicas::State::refuse_capture() const {
  if (!streams_.is_capturing()) return;
  throw Error(ErrorCode::invalid_state,
              "DataParallel cannot be captured into a CUDA graph: several GPUs in one process would wait for "
              "each other; with DistributedDataParallel, one process a GPU, passes can be captured");
}

std::vector<std::vector<at::Tensor>> Replicas::State::scatter(std::vector<NestedTensor> const& inputs) const {
  refuse_capture();
  std::vector<std::vector<at::Tensor>> parts(chunks_of(inputs));
  for (NestedTensor const& input : inputs) {
    auto chunks = parts.size() > 1 && input.tensor.defined()
                      ? input.tensor.chunk(static_cast<std::int64_t>(devices().size()), dim_)
                      : std::vector<at::Tensor>(parts.size(), input.tensor);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      parts[r].push_back(chunks[r].defined() ? chunks[r].to(threads_.places()[r], /*non_blocking=*/true)
                                             : chunks[r]);
    }
  }
  return parts;
}

void Replicas::State::run(std::size_t count,
                          std::function<void(std::size_t, torch::nn::Module&)> const& task) {
  ReplicaThreads::refuse_nesting();
  refuse_capture();
  copies_.refresh(count);
  threads_.run(count, [&](std::size_t r) { task(r, copies_[r]); });
}

std::vector<at::Tensor> Replicas::State::gather(std::vector<std::vector<NestedTensor>> const& outputs) {
  std::vector<at::Tensor> gathered;
  for (std::size_t r = 1; r < outputs.size(); ++r) {
    bool const alike = std::equal(outputs[r].begin(), outputs[r].end(), outputs[0].begin(), outputs[0].end(),
                                  [](auto const& a, auto const& b) { return a.where == b.where; });
    require(alike, [&] {
      auto const names = [](std::vector<NestedTensor> const& tensors) {
        std::vector<std::string> all;
        for (NestedTensor const& each : tensors) all.push_back(each.where);
        return all.empty() ? std::string("no tensor") : join(all, ", ");
      };
      return text("DataParallel: replica ", r, " returned ", names(outputs[r]), ", replica 0 ",
                  names(outputs[0]), "; every replica must return as many members, by the same names");
    });
  }
  for (std::size_t t = 0; t < outputs[0].size(); ++t) {
    std::vector<NestedTensor> parts;
    for (auto const& each : outputs) parts.push_back(each[t]);
    gathered.push_back(together(parts));
  }
  return gathered;
}

void Replicas::State::require_alike(std::vector<NestedTensor> const& parts) const {
  at::Tensor const& first = parts[0].tensor;
  for (std::size_t r = 1; r < parts.size(); ++r) {
    at::Tensor const& other = parts[r].tensor;
    bool alike = first.defined() == other.defined();
    if (alike && first.defined()) {
      alike = first.dim() == other.dim() && first.scalar_type() == other.scalar_type();
      for (std::int64_t d = 0; alike && d < first.dim(); ++d) {
        alike = d == dim_ || first.size(d) == other.size(d);
      }
    }
    require(alike, [&] {
      return text("DataParallel: ", parts[r].where, " of replica ", r, " is ", dtype_and_sizes(other),
                  ", that of replica 0 is ", dtype_and_sizes(first),
                  "; types must be equal, and all extents but the one along dimension ", dim_);
    });
  }
}

// Runs in the calling thread, whose current streams are those of the replicas.
at::Tensor Replicas::State::together(std::vector<NestedTensor> const& parts) {
  require_alike(parts);
  at::Tensor const& first = parts[0].tensor;
  if (!first.defined()) return first;
  if (devices().size() == 1) return first.to(output_);
  std::vector<at::Tensor> there;
  for (NestedTensor const& part : parts) there.push_back(part.tensor.to(output_));
  if (first.dim() == 0) {
    if (!std::exchange(warned_, true)) {
      log(LogLevel::warning,
          "DataParallel: every replica returned a scalar; they become a vector with one element for each "
          "replica, and not a scalar: add them up, or average");
    }
    return at::stack(there);
  }
  require(dim_ < first.dim(), [&] {
    return text("DataParallel: ", parts[0].where, " of replica 0 is ", dtype_and_sizes(first),
                ", which has no dimension ", dim_,
                "; DataParallelOptions::dim says along which one outputs are "
                "put together");
  });
  return there.size() == 1 ? there[0] : at::cat(there, dim_);
}

// ---- the part that templates call

Replicas::Replicas(std::shared_ptr<torch::nn::Module> module, DataParallelOptions const& options) {
  require(module != nullptr, "DataParallel: a module is needed, found none");
  std::vector<Device> const devices = chosen_devices(options);
  if (options.output_device) static_cast<void>(places_of({*options.output_device}));
  if (devices.empty()) return;
  state_ = std::make_unique<State>(std::move(module), devices, places_of(devices), options);
  warn_of_imbalance(devices);
}
Replicas::~Replicas() = default;

bool Replicas::alone() const noexcept { return state_ == nullptr; }
std::span<Device const> Replicas::device_ids() const noexcept {
  return state_ ? std::span<Device const>(state_->devices()) : std::span<Device const>{};
}
std::vector<std::vector<at::Tensor>> Replicas::scatter(std::vector<NestedTensor> const& inputs) const {
  return state_->scatter(inputs);
}
void Replicas::run(std::size_t count, std::function<void(std::size_t, torch::nn::Module&)> const& task) {
  state_->run(count, task);
}
std::vector<at::Tensor> Replicas::gather(std::vector<std::vector<NestedTensor>> const& outputs) {
  return state_->gather(outputs);
}

}  // namespace detail
}  // namespace ddp::libtorch

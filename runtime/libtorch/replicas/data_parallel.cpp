#include "ddp/libtorch/data_parallel.hpp"

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "data_parallel/replicas/device_choice.hpp"
#include "data_parallel/replicas/refuse_capture.hpp"
#include "data_parallel/replicas/replica_threads.hpp"
#include "libtorch/gpu_streams.hpp"
#include "libtorch/replicas/replica_copies.hpp"
#include "libtorch/tensor_view.hpp"

namespace ddp::libtorch {
namespace {

// "Float [8, 3]".
std::string dtype_and_sizes(at::Tensor const& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), " ", tensor.sizes()) : "undefined";
}

std::vector<c10::Device> places_of(std::vector<Device> const& devices) {
  require_one_kind(devices);
  std::vector<c10::Device> places;
  for (Device const device : devices) {
    c10::Device const place = places.emplace_back(place_of(device));
    if (place.is_cpu() || (c10::impl::hasDeviceGuardImpl(place.type()) &&
                           c10::impl::getDeviceGuardImpl(place.type())->deviceCount() > place.index())) {
      continue;
    }
    throw Error(ErrorCode::unsupported,
                text("DataParallel: PyTorch does not see ", device, ", its ", place.str(),
                     "; expected a PyTorch with CUDA that sees the same GPUs as ddp"));
  }
  return places;
}

// ---- a replica's thread

thread_local bool in_replica = false;

// The thread runs a replica at `place`, with the device that is current there.
class InReplica {
 public:
  explicit InReplica(c10::Device place) {
    if (!place.is_cpu()) current_.reset_device(place);
    in_replica = true;
  }
  ~InReplica() { in_replica = false; }
  InReplica(InReplica const&) = delete;
  InReplica& operator=(InReplica const&) = delete;

 private:
  c10::OptionalDeviceGuard current_;
};

// What the calling thread has set, for those of the other replicas.
class CallersSettings {
 public:
  explicit CallersSettings(std::vector<c10::Device> const& places) {
    for (c10::Device const place : places) {
      if (!place.is_cpu()) streams_.push_back(c10::impl::VirtualGuardImpl(place.type()).getStream(place));
    }
  }
  void run(std::function<void()> const& task) const {
    at::ThreadLocalStateGuard const guard(settings_);
    for (c10::Stream const stream : streams_) {
      c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
    }
    task();
  }

 private:
  at::ThreadLocalState settings_;
  std::vector<c10::Stream> streams_;  // the current one of each GPU
};

// As ddp::rethrow_as(), but with PyTorch's errors without their backtraces.
void rethrow_torch_error(std::string const& replica, std::exception_ptr const& error) {
  try {
    std::rethrow_exception(error);
  } catch (c10::OutOfMemoryError const& original) {
    std::throw_with_nested(Error(ErrorCode::out_of_memory, replica + original.what_without_backtrace()));
  } catch (c10::Error const& original) {
    std::throw_with_nested(Error(ErrorCode::invalid_state, replica + original.what_without_backtrace()));
  } catch (...) {
    rethrow_as(replica, error);
  }
}

// ---- what DataParallel does

class TorchReplicas final : public detail::Replicas {
 public:
  TorchReplicas(std::shared_ptr<torch::nn::Module> module, std::vector<Device> const& devices,
                DataParallelOptions const& options)
      : places_(places_of(devices)),
        copies_(std::move(module), devices, places_),
        threads_(devices),
        streams_(GpuStreams::of(devices[0])),
        output_(options.output_device ? place_of(*options.output_device) : places_[0]),
        dim_(static_cast<std::int64_t>(options.dim)) {}

  [[nodiscard]] std::span<Device const> device_ids() const noexcept override { return threads_.devices(); }

  [[nodiscard]] std::vector<std::vector<at::Tensor>> scatter(
      std::vector<detail::NestedTensor> const& inputs) const override {
    refuse_capture(streams_->is_capturing());
    std::vector<std::vector<at::Tensor>> parts(chunks_of(inputs));
    for (detail::NestedTensor const& input : inputs) {
      auto chunks = parts.size() > 1 && input.tensor.defined()
                        ? input.tensor.chunk(static_cast<std::int64_t>(places_.size()), dim_)
                        : std::vector<at::Tensor>(parts.size(), input.tensor);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        parts[r].push_back(chunks[r].defined() ? chunks[r].to(places_[r], /*non_blocking=*/true) : chunks[r]);
      }
    }
    return parts;
  }

  // In each thread the device is current, and so are the caller's streams: copies which the caller enqueues
  // before and after are in order with it. at::parallel_for() would not do: it runs replicas one after
  // another where PyTorch has one thread, and does not pass on what the caller has set.
  void run(std::size_t count, std::function<void(std::size_t, torch::nn::Module&)> const& task) override {
    if (in_replica) {  // its threads would wait for themselves, and several call the same object
      throw Error(
          ErrorCode::invalid_state,
          "DataParallel is called inside of a replica of another one, or of itself, whose devices are "
          "busy with its passes: wrap only the outermost module");
    }
    refuse_capture(streams_->is_capturing());
    copies_.refresh(count);
    CallersSettings const settings(places_);
    threads_.run(
        count,
        [&](std::size_t r) {
          InReplica const inside(places_[r]);
          auto const mine = [&] { task(r, copies_[r]); };
          r == 0 ? mine() : settings.run(mine);
        },
        rethrow_torch_error);
  }

  [[nodiscard]] std::vector<at::Tensor> gather(
      std::vector<std::vector<detail::NestedTensor>> const& outputs) override {
    auto const names = [](std::vector<detail::NestedTensor> const& tensors) {
      std::vector<std::string> all;
      for (detail::NestedTensor const& each : tensors) all.push_back(each.where);
      return all;
    };
    auto const listed = [&](std::size_t r) {
      return outputs[r].empty() ? std::string("no tensor") : join(names(outputs[r]), ", ");
    };
    for (std::size_t r = 1; r < outputs.size(); ++r) {
      require(names(outputs[r]) == names(outputs[0]), [&] {
        return text("DataParallel: replica ", r, " returned ", listed(r), ", replica 0 ", listed(0),
                    "; every replica must return as many members, by the same names");
      });
    }
    std::vector<at::Tensor> gathered;
    for (std::size_t t = 0; t < outputs[0].size(); ++t) {
      std::vector<detail::NestedTensor> parts;
      for (auto const& each : outputs) parts.push_back(each[t]);
      gathered.push_back(together(parts));
    }
    return gathered;
  }

 private:
  [[nodiscard]] std::size_t chunks_of(std::vector<detail::NestedTensor> const& inputs) const {
    detail::NestedTensor const* first = nullptr;
    std::int64_t chunks = 0;
    auto const count = static_cast<std::int64_t>(places_.size());
    for (detail::NestedTensor const& input : inputs) {
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
    require(
        first != nullptr,
        "DataParallel: none of the inputs is a tensor, or has one, so there is no batch to split; expected "
        "at least one");
    return static_cast<std::size_t>(chunks);
  }

  void require_alike(std::vector<detail::NestedTensor> const& parts) const {
    at::Tensor const& first = parts[0].tensor;
    auto const form = [this](at::Tensor const& tensor) {
      auto extents = tensor.sizes().vec();
      if (dim_ < tensor.dim()) extents[static_cast<std::size_t>(dim_)] = 0;
      return std::pair(tensor.scalar_type(), extents);
    };
    for (std::size_t r = 1; r < parts.size(); ++r) {
      at::Tensor const& other = parts[r].tensor;
      bool const alike =
          first.defined() == other.defined() && (!first.defined() || form(first) == form(other));
      require(alike, [&] {
        return text("DataParallel: ", parts[r].where, " of replica ", r, " is ", dtype_and_sizes(other),
                    ", that of replica 0 is ", dtype_and_sizes(first),
                    "; types must be equal, and all extents but the one along dimension ", dim_);
      });
    }
  }

  // Runs in the calling thread, whose current streams are those of the replicas.
  at::Tensor together(std::vector<detail::NestedTensor> const& parts) {
    require_alike(parts);
    at::Tensor const& first = parts[0].tensor;
    if (!first.defined()) return first;
    if (places_.size() == 1) return first.to(output_);
    std::vector<at::Tensor> there;
    for (detail::NestedTensor const& part : parts) there.push_back(part.tensor.to(output_));
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
                  "; DataParallelOptions::dim says along which one outputs are put together");
    });
    return there.size() == 1 ? there[0] : at::cat(there, dim_);
  }

  std::vector<c10::Device> places_;  // PyTorch's names of the devices
  ReplicaCopies copies_;
  ReplicaThreads threads_;
  std::unique_ptr<GpuStreams> streams_;
  c10::Device output_;
  std::int64_t dim_;
  bool warned_ = false;  // of scalars
};

}  // namespace

std::unique_ptr<detail::Replicas> detail::Replicas::make(std::shared_ptr<torch::nn::Module> module,
                                                         DataParallelOptions const& options) {
  require(module != nullptr, "DataParallel: a module is needed, found none");
  std::vector<Device> const devices = chosen_devices(options.device_ids);
  if (options.output_device) static_cast<void>(places_of({*options.output_device}));
  if (devices.empty()) return nullptr;
  auto made = std::make_unique<TorchReplicas>(std::move(module), devices, options);
  warn_of_imbalance(devices);
  return made;
}

}  // namespace ddp::libtorch

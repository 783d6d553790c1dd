// The replicas of a torch module: made by its clone(), given its values, tied to its parameters by autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddp/core/device.hpp"

namespace torch::nn {
class Module;
}

namespace ddp::libtorch {

/// Replica 0 is the module itself. One thread at a time.
class ReplicaCopies {
 public:
  /// Makes them. `places` are PyTorch's names of `devices`. Throws Error(invalid_argument) naming what is not
  /// on the first device, Error(unsupported) for a module whose clone() is missing or makes something else.
  ReplicaCopies(std::shared_ptr<torch::nn::Module> module, std::vector<Device> devices,
                std::vector<c10::Device> places);

  /// Enqueues, on the current streams, copies of the module's values to the first `count` replicas, and gives
  /// parameters of replicas the gradient edges of the next forward pass. Replicas follow train() and eval().
  /// Makes the replicas again if a parameter or a buffer was added, converted, frozen or unfrozen. Errors as
  /// the constructor.
  void refresh(std::size_t count);

  [[nodiscard]] torch::nn::Module& operator[](std::size_t replica) const noexcept {
    return *replicas_[replica];
  }

 private:
  // Properties of the module's tensors: if they change, replicas no longer fit.
  struct Form {
    c10::TensorImpl const* tensor = nullptr;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    at::ScalarType type = at::kFloat;
    bool trained = false;
    friend bool operator==(Form const&, Form const&) = default;
  };
  // A tensor of the module, and the same tensor of each further replica.
  struct Slot {
    at::Tensor own;
    std::vector<at::Tensor> others;      // of replica 1, 2, …
    std::vector<std::int64_t> versions;  // of `own` when each of them was written last
  };
  // Small tensors of one type, which travel to another device as one.
  struct Pack {
    std::vector<std::size_t> slots;
    std::vector<std::int64_t> sizes;  // in elements
  };

  void fit();
  void make();
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(c10::Device place, Device device) const;
  void connect_slots();
  void pack_slots();
  [[nodiscard]] std::vector<Form> checked_forms() const;
  void follow_mode(std::size_t count) const;
  void copy_values(std::size_t count);
  void copy_to(std::size_t replica, std::map<at::ScalarType, at::Tensor>& packed);
  void set_gradient_edges();

  std::vector<std::shared_ptr<torch::nn::Module>> replicas_;
  std::vector<Device> devices_;
  std::vector<c10::Device> places_;
  std::optional<std::vector<Form>> forms_;  // of the module when the replicas were made
  std::vector<Slot> slots_;
  std::vector<std::size_t> large_;  // slots that travel alone
  std::map<at::ScalarType, Pack> packs_;
};

}  // namespace ddp::libtorch

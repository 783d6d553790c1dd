#include "ddp/data_parallel/parallel_apply.hpp"

#include "data_parallel/replicas/replica_threads.hpp"
#include "ddp/core/text.hpp"

namespace ddp {

std::vector<Value> parallel_apply(std::span<std::shared_ptr<Module> const> replicas,
                                  std::span<Value const> inputs, std::span<Device const> devices) {
  require(replicas.size() == inputs.size() && replicas.size() == devices.size(), [&] {
    return text("parallel_apply: expected an input and a device for each replica, found ", replicas.size(),
                " replicas, ", inputs.size(), " inputs and ", devices.size(), " devices");
  });
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    require(replicas[i] != nullptr && replicas[i]->device() == devices[i], [&] {
      return text("parallel_apply: replica ", i, " is ", replicas[i] ? "on " : "null",
                  replicas[i] ? to_string(replicas[i]->device()) : "", ", expected one on ", devices[i],
                  "; replicate() makes replicas for a list of devices");
    });
  }
  ReplicaThreads threads({devices.begin(), devices.end()});
  std::vector<Value> outputs(replicas.size());
  threads.run(replicas.size(), [&](std::size_t i) { outputs[i] = replicas[i]->forward(inputs[i]); });
  return outputs;
}

}  // namespace ddp

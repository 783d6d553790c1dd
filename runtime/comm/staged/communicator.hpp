// Memory of a device through a communicator of host memory.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "comm/communicator_backend.hpp"
#include "comm/last_operation.hpp"
#include "comm/step_commits.hpp"

namespace ddp {

/// For ranks that share a GPU, which NCCL refuses. Elements are copied to pinned host memory, go through the
/// inner communicator on a stream of the host, and are copied back. Large operations go in parts, with two
/// halves of staging, so that the copies of one part and the reduction of another overlap. The calling thread
/// waits for nothing; the inner communicator has the deadlines, compares ranks and notices lost ones. Ranks
/// that share a GPU must be processes: CUDA may run the streams of a process one after the other, and does
/// not know when a stream waits for the host, and the host for another stream.
class StagedCommunicator final : public CommunicatorBackend {
 public:
  /// `inner` is for memory of the CPU; `timeout`: of its operations. `commits`, which may be null, are told
  /// before the device goes on behind an operation that failed.
  StagedCommunicator(std::unique_ptr<Communicator> inner, Device device, std::chrono::milliseconds timeout,
                     std::shared_ptr<StepCommits> commits = nullptr);

  [[nodiscard]] std::string_view backend() const noexcept override { return "staged"; }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override;
  void check_health() const override;
  void abort(std::string_view reason) noexcept override;

 private:
  // Elements [offset, offset + length) of each block of an operation, and where they lie in host memory.
  struct Part {
    Operation operation;
    std::size_t offset = 0;
    std::size_t length = 0;
    std::byte* staging = nullptr;
    double* factor = nullptr;
  };
  // The blocks of an operation that are copied, and where in staging the first of them lies, in blocks.
  struct Side {
    std::size_t blocks = 0;
    std::size_t first = 0;
  };
  class Pipeline;

  void enqueue(std::span<Operation const> operations, Stream& stream) override;
  void run(Operation const& operation, Pipeline& pipeline);
  void finish_operations(char const* what) const;

  void copy_in(Part const& part, Stream& stream) const;
  void pass_on(Part const& part);
  void tell_of_failure();
  void copy_out(Part const& part, Stream& stream) const;

  [[nodiscard]] std::byte* half(std::size_t index) const noexcept;
  [[nodiscard]] std::size_t slots(OperationKind kind) const noexcept;
  [[nodiscard]] Side input(Operation const& operation) const noexcept;
  [[nodiscard]] Side output(Operation const& operation) const noexcept;
  [[nodiscard]] TensorView on_host(Part const& part, std::size_t slot) const;
  [[nodiscard]] TensorView on_device(Part const& part, void const* base, std::size_t block) const;

  std::unique_ptr<Communicator> inner_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<StepCommits> commits_;
  Tensor staging_;  // two halves, pinned
  Tensor factors_;  // one beside each half
  LastOperation last_;
  // Declared last, so that its work ends before what it uses is destroyed.
  HostStream host_;
};

}  // namespace ddp

// What a communicator is told beside its ranks and its device.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "ddp/core/export.hpp"

namespace DDP_EXPORT ddp {

class StepCommits;

/// How a communicator is chosen, and how long it waits.
struct CommunicatorOptions {
  /// How long an operation waits for other ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How long the construction waits for other ranks, and how long NCCL may take to connect those of split().
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// "" chooses; "solo", "shm", "mpi", "nccl", "staged" insist, or throw Error(unsupported) with what is
  /// there.
  std::string backend{};
  /// SMs of the GPU that kernels of NCCL have to themselves, which bounds their CTAs; 0: no bound.
  int comm_sms = 0;
  /// What the error of a timeout advises to raise: where the users of this program set `timeout`.
  std::string timeout_setting = "CommunicatorOptions::timeout";
  /// For World: what tells the steps of its GPU that an operation was ended early. Null: nobody asks.
  std::shared_ptr<StepCommits> commits{};
};

}  // namespace ddp

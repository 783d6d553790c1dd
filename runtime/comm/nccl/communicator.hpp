// Ranks with a GPU each, through NCCL.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator_backend.hpp"
#include "comm/group/members.hpp"
#include "ddp/comm/options.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/device/cuda_stream.hpp"

namespace ddp {

/// Collective over `members`, each with a GPU of its own. Throws Error(unsupported) in a build without CUDA.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(MemberGroup const& members, Device device,
                                                                   CommunicatorOptions const& options);

class NcclWatchdog;
struct NcclConnection;

/// Each operation is a call of NCCL in the caller's stream; kernels of this library do before or after it
/// what NCCL does not. The host waits only in the first operations of a kind: they connect ranks, so all must
/// come. Until the first one it takes no memory of the GPU. Operations of a group may run at the same time.
/// Operations can be captured into a CUDA graph of the program's own, which must be destroyed before the
/// communicator. The watchdog does not see replays of such a graph: they have no deadline, and a missing rank
/// is not noticed. Replays by replay() are watched.
class NcclCommunicator final : public CommunicatorBackend {
 public:
  explicit NcclCommunicator(NcclConnection connection);
  ~NcclCommunicator() override;

  [[nodiscard]] std::string_view backend() const noexcept override { return "nccl"; }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override;
  [[nodiscard]] Tensor allocate(Bytes bytes) override;
  void combine_in_rank_order() override;
  void check_health() const override;
  void abort(std::string_view reason) noexcept override;
  [[nodiscard]] bool sees_calls() const noexcept override;
  SinceLastStep settle_step() override;
  void look_for_difference() const override;
  [[nodiscard]] std::uint64_t called() const noexcept override;
  [[nodiscard]] std::string why_not_recorded() const override { return {}; }

 private:
  class Operations;
  struct Recording;
  void begin_recording(Stream& stream) override;
  void record(std::span<Operation const> operations, CudaStream& stream);
  /// Made in the first operation. Within a Call that has begun.
  [[nodiscard]] Operations& operations();
  void require_no_first_capture(CudaStream const& stream) const;
  void end_recording(std::shared_ptr<RecordedGraph> const& graph) override;
  void enqueue(std::span<Operation const> operations, Stream& stream) override;
  /// Every rank's `mine`, in rank order: the same number of elements each.
  template <class T>
  [[nodiscard]] std::vector<T> exchange(std::string_view what, std::vector<T> const& mine, Deadline deadline);

  std::shared_ptr<NcclWatchdog> watchdog_;
  bool in_rank_order_ = false;
  std::unique_ptr<Operations> operations_;
  std::unique_ptr<Recording> recording_;
  int splits_ = 0;
};

}  // namespace ddp

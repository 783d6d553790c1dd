// Options for how gradients are kept and reduced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ddp/core/export.hpp"
#include "ddp/core/ids.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/reducer/parameter.hpp"
#include "ddp/reducer/sharding.hpp"

namespace DDP_EXPORT ddp {

/// How gradients are kept and reduced.
struct DistributedDataParallelOptions {
  Bytes bucket_bytes = 25_MiB;                       ///< a bucket is closed when it has so much
  Bytes first_bucket_bytes = 1_MiB;                  ///< of the first bucket, which should start early
  GradientStorage storage = GradientStorage::arena;  ///< where gradients stand between steps
  /// What a step without set_weight() computes.
  enum class Reduction { average, sum } reduction = Reduction::average;  ///< which of them
  /// A floating point type that gradients of any other one are converted to while they travel: f32, so that
  /// 16-bit gradients are added up in f32, or bf16 or f16, so that f32 gradients take half the time on the
  /// wire. Results have the gradients' own type. Takes memory for one bucket of that type on each device.
  /// None: gradients travel as they are.
  std::optional<DType> reduce_dtype{};
  /// Whether the same gradients give the same bits, whatever the buckets, their order, the storage and, on
  /// one kind of device, the backend: each element is added up in rank order and rounded once, 16-bit types
  /// in f32, and the norm of clip_norm in the order of parameters. Backends of host memory always add up so;
  /// NCCL then only moves elements, and the sums are kernels of this library, which takes memory for what a
  /// rank receives: (n - 1) / n of the largest bucket. Not together with both `sharding` and clip_norm.
  bool deterministic = false;
  /// What happens to a parameter that this rank did not mark.
  enum class Unused {
    zero,   ///< counts as zero
    error,  ///< synchronize() throws on every rank, with parameters and ranks; costs one host wait a step
  } unused = Unused::zero;  ///< which of them
  /// What happens to gradients that are not finite: NaN or infinite on a rank, also where reduce_dtype made
  /// them so. Looking for them reads all gradients once. The parameters lie on one device.
  enum class Nonfinite {
    ignore,  ///< they spread to every rank
    error,   ///< synchronize() throws on every rank, with parameters and ranks; costs one host wait a step
    flag,    ///< found_nonfinite() is 1 on every rank, for an optimizer that skips the step
  } nonfinite = Nonfinite::ignore;  ///< which of them
  /// If above 0: after every so many synchronised steps ranks compare the values of all parameters, as they
  /// are then on the compute stream; where they differ, synchronize() throws on every rank, with parameters
  /// and ranks. Reads all parameters once, and the host waits.
  std::uint64_t verify_every = 0;
  /// For ranks that may run out of data at different steps, and then call join().
  enum class Uneven {
    refuse,          ///< there is no join(), and nothing is sent for it
    divide_by_live,  ///< averages are over ranks that have data: each counts 1, or what set_weight() says
    divide_by_all,   ///< averages are over all ranks, with zeros of those that have none; no set_weight()
    error,  ///< a step that only some ranks have data for throws on every rank; costs one host wait a step
  } uneven = Uneven::refuse;  ///< which of them
  /// If above 0: where the norm of all averages together is larger, they are multiplied by
  /// clip_norm / (norm + 1e-6), as torch::nn::utils::clip_grad_norm_ does it, without a host wait. The same
  /// on every rank. The parameters lie on one device.
  double clip_norm = 0;
  /// Beside the parameters, what gets rank 0's values on every rank; with the same names, shapes and dtypes
  /// everywhere. Their memory must outlive the DistributedDataParallel.
  std::vector<NamedTensor> buffers{};
  /// What DistributedDataParallel::sync_buffers() does; the same on every rank.
  BufferSync buffer_sync = BufferSync::broadcast;
  /// Whether each rank updates a part of every bucket only, and so keeps 1/n of the optimizer's state: see
  /// DistributedDataParallel::slices(). Needs storage = arena and Parameter::bind_value. Buckets are not
  /// rebuilt.
  Sharding sharding = Sharding::none;
  /// Measures every step (StepStatistics) without waiting on the host: events on the streams, and 16 bytes
  /// of each rank with the step's last message. The same on every rank; DDP_STATISTICS sets it.
  bool statistics = false;
  /// Where a GPU's ranks go on without a lost one (ddp-launch --survive): synchronize() waits until the step
  /// is committed, and throws CommError if it broke, for an optimizer that cannot look at uncommitted(). The
  /// host then never runs ahead of the GPU. Not with on_bucket_ready() or on_slice_ready().
  bool await_commit = false;
  /// Parameters may be marked several times in a step; the first step learns how often.
  bool allow_repeated_ready = false;
  /// Reorder buckets after the first synchronised step. If the order changes, arena storage moves the
  /// gradients through host memory once, at the end of that step.
  bool rebuild_buckets = true;
  /// Where buckets lie, if not in memory of the communicators: at least `bytes` on `device`, aligned to
  /// BucketPlan::kAlignment, and ready for the compute stream, on which they are zeroed. For a program whose
  /// allocator is to know all memory of a GPU. On every rank or on none.
  std::function<Tensor(Bytes bytes, Device device)> allocate{};
  /// Where the program computes, if not on World::stream(): as after compute_on().
  Stream* compute_stream = nullptr;
};

/// A gradient with an element that is not finite.
struct NonfiniteGradient {
  std::size_t parameter = 0;  ///< as given to the constructor
  Rank rank;                  ///< by place in the group, on which it was found
};

}  // namespace ddp

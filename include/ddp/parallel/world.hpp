// A program's handle on its job: rank, device, communicators.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ddp/bootstrap/control_plane.hpp"
#include "ddp/comm/communicator.hpp"
#include "ddp/comm/factory.hpp"
#include "ddp/comm/options.hpp"
#include "ddp/core/export.hpp"
#include "ddp/device/stream.hpp"
#include "ddp/observe/chrome_trace.hpp"

namespace ddp {
struct WorldState;  // of the runtime, as is the next
struct WorldAccess;
}  // namespace ddp

namespace DDP_EXPORT ddp {

class Replicated;

/// Settings of World::init(); the environment may override them.
struct WorldOptions {
  /// How long a collective waits for other ranks. DDP_TIMEOUT (seconds) in the environment overrides it.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How long init() waits for the other ranks, and how long NCCL may take to connect them, then and later.
  /// DDP_INIT_TIMEOUT (seconds) overrides it.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// "" chooses what fits; otherwise a backend's name. DDP_BACKEND overrides it.
  std::string backend{};
  /// A folder for timelines of every rank's communication, readable in https://ui.perfetto.dev ("" for none).
  /// Relative folders, here and below, begin at the working directory of init(). DDP_TRACE overrides it.
  std::string trace{};
  /// A folder for the statistics of every DistributedDataParallel, which then has Options::statistics:
  /// FOLDER/rank3.ddp-0.jsonl has a line of JSON for each step of "ddp/0", as messages call it, on rank 3, in
  /// place of what the file had before; "" for none. DDP_STATISTICS overrides it.
  std::string statistics{};
  /// On a GPU: this many of its SMs (rounded up as SmPartition says) are set aside for communication, and the
  /// program's kernels on stream() run on the others, so that neither waits for the other. Pays if the
  /// backward pass consists of large products that take about as long as its communication. NCCL uses at most
  /// that many CTAs. 0: nothing is set aside. DDP_COMM_SMS overrides it. Ignored on a CPU.
  int comm_sms = 0;
  /// Returns a stream of the program's own for World::stream(). Called once, by init(), with the rank's
  /// device, which is current then. For a GPU: std::make_shared<CudaStream>(device, handle); the handle must
  /// outlive the World, its sub-groups and everything made with them. If it returns null, the World makes a
  /// stream, as without this function; on a CPU, where a World computes in the calling thread, it must return
  /// null. init() throws Error(invalid_argument) for a stream of another device, and together with comm_sms.
  std::function<std::shared_ptr<Stream>(Device device)> stream{};
};

/// How long the parts of World::init() took on this rank.
struct StartTimes {
  std::chrono::nanoseconds control{};  ///< joining the control plane
  std::chrono::nanoseconds device{};   ///< the GPU's driver, context and stream; next to nothing on a CPU
  std::chrono::nanoseconds communicator{};  ///< the backend, with the wait for ranks that come later
};

/// A handle on one rank's view of its job. Cheap to copy. When the last copy is destroyed, the rank leaves
/// the group; that must happen on every rank before the program ends. If it is destroyed while an exception
/// propagates, or never (exit), the rank counts as failed. One thread at a time.
class World {
 public:
  /// Finds out how this process was started (ddp-launch, mpirun, srun, or alone), joins the other ranks, and
  /// returns when all are there. Installs a terminate handler that reports an uncaught exception to
  /// ddp-launch. Throws Error(invalid_argument) for options that are out of range, also where the environment
  /// overrides them, and for a broken environment; CommError(timeout) naming the ranks that never came;
  /// Error(not_found) if this rank was given GPUs and finds none.
  [[nodiscard]] static World init(WorldOptions options = {});
  /// Returns the control plane of a World's ranks, by the deadline of WorldOptions::init_timeout.
  using Connect = std::function<std::shared_ptr<ControlPlane>(Deadline deadline)>;
  /// init() for ranks that find each other by other means than the environment tells: rank and size are those
  /// of the control plane. For ranks of a communicator of MPI's see init_world() in ddp/mpi.hpp. Throws also
  /// what `connect` throws, and Error(invalid_argument) if it returns null.
  [[nodiscard]] static World over(Connect const& connect, WorldOptions options = {});
  /// Worlds of `size` ranks that are threads of this process, for tests and single-process programs.
  [[nodiscard]] static std::vector<World> in_process(int size, WorldOptions const& options = {});

  [[nodiscard]] Rank rank() const noexcept;             ///< This rank, from 0 to size() - 1.
  [[nodiscard]] int size() const noexcept;              ///< Ranks of this World.
  [[nodiscard]] LocalRank local_rank() const noexcept;  ///< Among the processes started on this host.
  [[nodiscard]] int local_size() const noexcept;        ///< Processes started on this host.
  /// The device that this rank computes on: cuda:LOCAL_RANK where GPUs are visible (the one GPU, if only one
  /// is), otherwise cpu. It is the current device of the thread that called init().
  [[nodiscard]] Device device() const noexcept;

  /// The communicator of all ranks for memory of device(), for the program's own collectives. Each
  /// DistributedDataParallel has one of its own, so the two never mix.
  [[nodiscard]] Communicator& communicator() const;
  /// The stream on which the program computes. On a CPU it is the calling thread itself. On a GPU it is a
  /// CudaStream that keeps order with CUDA's default stream, so that kernels launched without a stream are
  /// ordered too. With WorldOptions::comm_sms it does not keep that order, and work of the default stream
  /// must be ordered with events. With WorldOptions::stream it is that stream, and keeps the order with which
  /// the program made it.
  [[nodiscard]] Stream& stream() const;
  /// Streaming multiprocessors that kernels on stream() have: pass it to libraries that plan by that number,
  /// such as cuBLAS (cublasSetSmCountTarget). 0 on a CPU.
  [[nodiscard]] int compute_sms() const noexcept;
  /// A new stream for collectives on memory of `device`. With WorldOptions::comm_sms, and if it is device(),
  /// as SmPartition::make_comm_stream().
  [[nodiscard]] std::unique_ptr<Stream> make_comm_stream(Device device) const;
  /// One number from each rank, reduced over all: a loss to print, a count of samples, a question that all
  /// must answer in the same way. Every rank calls it, in the same order as its other operations on
  /// communicator(), which carries it. On a GPU the number goes through device memory, and the host waits
  /// until stream() has finished. Throws what that wait throws, and CommError(timeout) after
  /// WorldOptions::timeout.
  [[nodiscard]] double all_reduce_scalar(double value, ReduceOp op = ReduceOp::sum()) const;

  [[nodiscard]] ControlPlane& control() const;  ///< How its ranks find each other.
  /// The same, shared: for another communicator of make_communicator(), which may outlive the World.
  [[nodiscard]] std::shared_ptr<ControlPlane> shared_control() const;

  /// Waits for every rank, for at most the timeout.
  void barrier() const;
  /// A World of some of the ranks. Collective over this one; null for ranks that are not in `ranks`.
  [[nodiscard]] std::optional<World> subgroup(std::span<Rank const> ranks);

  /// Goes on without lost ranks, in the same processes: call it where a CommError is caught, on every rank.
  /// Only under ddp-launch --survive or with DDP_MIN_RANKS (docs/surviving.md), and for now between ranks of
  /// one host. On a GPU optimizers must look at DistributedDataParallel::uncommitted().
  ///
  /// It ends this World's communicators on every rank, waits for all ranks that live, for at most
  /// WorldOptions::timeout, and makes new communicators. Whoever dies meanwhile, also while it goes on, or
  /// does not come, is left out; ddp-launch ends a process that did not come. Then models, their buffers and
  /// `state` get, on every rank, the values of the rank that has done most steps (of the lowest of several).
  /// Each DistributedDataParallel goes on with the same parameters: gradients are bound anew, and what the
  /// broken step or micro-steps have added up is gone. DistributedSampler, StopSignal and Checkpoint follow
  /// too. References that communicator() returned before end.
  ///
  /// The new ranks are 0 to size() - 1 in the order of the old ones, since collectives, samplers and programs
  /// count on that; members() says which ranks of the job they are, as ddp-launch and messages number them.
  ///
  /// Does nothing, and warns, for the error for which it was rebuilt last: who calls it twice disturbs
  /// nobody.
  ///
  /// Throws `error` again if it is about no lost or late rank: ranks that differ would differ again. Where
  /// the job ends with its first lost rank it throws `error` too, with advice behind its words; of CPU ranks
  /// only if nothing else is refused. Throws Error(unsupported) where something hangs on this World that
  /// cannot follow: a sub-group, a guard of no_sync(), on a GPU parameters on several devices, and, if
  /// Replicated was not told how to go back to a checkpoint, sharding.
  /// Throws CommError(mismatch) if ranks have made their steps in other orders. Throws Error(invalid_state)
  /// if fewer than --min-ranks are left, and if no rank has the values of a whole number of steps, since
  /// on_bucket_ready() has updated parts of the model, and there is no way back. Throws also what
  /// ControlPlane::rebuild() throws.
  void rebuild(CommError const& error, Replicated& state);
  /// How often it was rebuilt: Membership::number.
  [[nodiscard]] int membership() const noexcept;
  /// Whether this process stands for a lost rank (ddp-launch --replace) and has not been taken in yet. Until
  /// its Replicated is made the World has this rank alone: what the program makes and asks meets nobody.
  /// Replicated's constructor waits for the others' rebuild(), and then the World is theirs, with rank() and
  /// size() anew.
  [[nodiscard]] bool is_newcomer() const noexcept;

  /// The timeline of this rank, for the program's own spans (SpanRecorder); null without WorldOptions::trace.
  /// The file is written when its last owner, the World included, is gone.
  [[nodiscard]] std::shared_ptr<ChromeTrace> const& trace() const noexcept;

  /// A name that begins with this group's name and that no other call returns, equal on every rank if all
  /// call in the same order: for keys and names of control(). It contains `what`, for messages.
  [[nodiscard]] std::string next_name(std::string_view what = {});
  [[nodiscard]] WorldOptions const& options() const noexcept;  ///< Those in effect.
  /// For more communicators of its ranks, made with make_communicator(): the timeouts in effect, and what
  /// their errors advise to raise.
  [[nodiscard]] CommunicatorOptions const& communicator_options() const noexcept;
  /// Zero for in_process().
  [[nodiscard]] StartTimes const& start_times() const noexcept;
  /// The ranks of this group, numbered as the control plane does: 0 to size-1 unless it is a sub-group, or
  /// was rebuilt.
  [[nodiscard]] std::span<Rank const> members() const noexcept;

 private:
  friend struct WorldAccess;
  explicit World(std::shared_ptr<WorldState> state) : state_(std::move(state)) {}
  DDP_HIDDEN static World start(RankInfo info, Connect const& connect, WorldOptions options);
  std::shared_ptr<WorldState> state_;
};

}  // namespace ddp

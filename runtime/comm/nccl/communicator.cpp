#include "comm/nccl/communicator.hpp"

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "comm/collective_arguments.hpp"
#include "comm/default_allocation.hpp"
#include "comm/nccl/check.hpp"
#include "comm/nccl/operations.hpp"
#include "comm/nccl/watch/watchdog.hpp"
#include "comm/solo/communicator.hpp"
#include "core/parse_number.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"

namespace ddp {

namespace {

// All CTAs of an operation must run at once, which more CTAs than SMs might never do. For NCCL these
// variables override what a communicator is made with.
void check_ctas(int sms) {
  for (char const* const variable : {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS"}) {
    char const* const given = std::getenv(variable);
    if (given == nullptr || parse_number<int>(given).value_or(0) <= sms) continue;
    throw Error(
        ErrorCode::invalid_argument,
        text(variable, "=", given, ", but communication has ", sms,
             " SMs of the GPU (DDP_COMM_SMS, WorldOptions::comm_sms): unset the variable, or set more "
             "SMs aside"));
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(MemberGroup const& members, Device device,
                                                     CommunicatorOptions const& options) {
  if (options.comm_sms > 0) check_ctas(options.comm_sms);
  NcclGroup group{members, device, options.comm_sms, options.commits};
  group.name += "/nccl";
  return std::make_unique<NcclCommunicator>(
      connect_nccl(std::move(group), Deadline::after(options.init_timeout)));
}

// A Call that lasts for the whole recording, so that no abort frees the communicator meanwhile.
struct NcclCommunicator::Recording {
  Recording(NcclWatchdog& watchdog, CudaStream& stream) : call(watchdog, stream) {}
  NcclWatchdog::Call call;
  std::size_t operations = 0;
  std::uint64_t digest = 0;  // of what ranks compare of these
};

NcclCommunicator::NcclCommunicator(NcclConnection connection)
    : CommunicatorBackend(connection.group.rank, connection.group.size(), connection.group.device),
      watchdog_(std::make_shared<NcclWatchdog>(std::move(connection))) {
  watchdog_->start();
}

NcclCommunicator::~NcclCommunicator() {
  recording_.reset();
  watchdog_->close();
}

void NcclCommunicator::combine_in_rank_order() { in_rank_order_ = true; }

NcclCommunicator::Operations& NcclCommunicator::operations() {
  if (!operations_) {
    operations_ = std::make_unique<Operations>(device(), rank(), size(), watchdog_->communicator());
    if (in_rank_order_) operations_->combine_in_rank_order();
  }
  return *operations_;
}

void NcclCommunicator::check_health() const { watchdog_->tell(); }

void NcclCommunicator::abort(std::string_view reason) noexcept {
  watchdog_->program_knows();
  watchdog_->fail(
      {.code = ErrorCode::aborted, .ranks = {watchdog_->group().me()}, .detail = std::string(reason)});
}

bool NcclCommunicator::sees_calls() const noexcept { return watchdog_->is_on_one_host(); }

SinceLastStep NcclCommunicator::settle_step() { return watchdog_->settle_step(); }

void NcclCommunicator::look_for_difference() const { watchdog_->look_for_difference(); }

std::uint64_t NcclCommunicator::called() const noexcept { return watchdog_->called(); }

void NcclCommunicator::enqueue(std::span<Operation const> operations, Stream& stream) {
  CudaStream& cuda = cuda_stream(stream);
  require(cuda.device() == device(), [&] {
    return text(to_string(operations[0].kind), ": the stream is of ", cuda.device(), ", the communicator of ",
                device());
  });
  if (recording_) {
    record(operations, cuda);
    return;
  }
  require_no_first_capture(cuda);
  ncclResult_t result = ncclSuccess;
  {
    NcclWatchdog::Call call(*watchdog_, cuda);
    for (Operation const& operation : operations) call.publish(fingerprint_of(operation));
    try {
      call.begin();
      if (operations[0].kind == OperationKind::replay) static_cast<void>(watchdog_->settle_step());
      result = this->operations().launch(operations, cuda);
    } catch (Error const& error) {
      watchdog_->fail(failure_of(error));
      watchdog_->tell();
    }
  }
  if (result != ncclSuccess) [[unlikely]] {
    watchdog_->fail_call(result,
                         operations.size() == 1 ? to_string(operations[0].kind) : "a group of operations");
  }
}

// CUDA allocates no memory while a stream is captured.
void NcclCommunicator::require_no_first_capture(CudaStream const& stream) const {
  if (watchdog_->is_open() || !stream.is_capturing()) return;
  throw Error(
      ErrorCode::invalid_state,
      "the first operation of a communicator connects the ranks, and cannot be captured into a CUDA graph: "
      "call one before the capture, such as barrier()");
}

void NcclCommunicator::begin_recording(Stream& stream) {
  CommunicatorBackend::begin_recording(stream);
  auto recording = std::make_unique<Recording>(*watchdog_, cuda_stream(stream));
  recording->call.publish({.kind = OperationKind::replay});
  recording->call.begin();
  static_cast<void>(operations());
  recording_ = std::move(recording);
}

// An operation that cannot be recorded is no failure of the group: the ranks go on without a graph.
void NcclCommunicator::record(std::span<Operation const> operations, CudaStream& stream) {
  watchdog_->tell();
  recording_->operations += operations.size();
  for (Operation const& operation : operations) {
    recording_->digest = PublishedCalls::digest(recording_->digest, fingerprint_of(operation));
  }
  nccl::check(operations_->launch(operations, stream), "recording an operation into a CUDA graph");
}

void NcclCommunicator::end_recording(std::shared_ptr<RecordedGraph> const& graph) {
  CommunicatorBackend::end_recording(graph);
  if (graph) {
    graph->operations = recording_->operations;
    graph->digest = recording_->digest;
    watchdog_->keep(graph);
  }
  recording_.reset();
}

template <class T>
std::vector<T> NcclCommunicator::exchange(std::string_view what, std::vector<T> const& mine,
                                          Deadline deadline) {
  std::size_t const bytes = mine.size() * sizeof(T);
  std::vector<T> all(mine.size() * static_cast<std::size_t>(size()));
  try {
    auto const values = watchdog_->group().exchange(
        what, std::string_view(reinterpret_cast<char const*>(mine.data()), bytes), deadline);
    for (std::size_t r = 0; r < values.size(); ++r) {
      if (values[r].size() != bytes) {
        throw CommError(ErrorCode::protocol, text(what, ": rank ", watchdog_->group().world_ranks[r],
                                                  " sent ", values[r].size(), " bytes, expected ", bytes));
      }
      std::memcpy(all.data() + r * mine.size(), values[r].data(), bytes);
    }
  } catch (CommError const& error) {
    watchdog_->fail(failure_of(error));
    watchdog_->program_knows();
    throw;
  }
  return all;
}

std::unique_ptr<Communicator> NcclCommunicator::split_off(std::span<Rank const> ranks) {
  watchdog_->finish_operations("split");
  NcclGroup const& group = watchdog_->group();
  Deadline const deadline = Deadline::after(group.waiting.timeout);
  check_split_requests(exchange("split", split_request(ranks, rank(), size()), deadline), group.world_ranks);
  ++splits_;
  if (ranks.empty()) return nullptr;
  if (ranks.size() == 1) return std::make_unique<SoloCommunicator>(device(), group.waiting.timeout);
  NcclGroup child{group.part(ranks, text(group.name, "/", splits_, "-", ranks[0])), device(), group.most_ctas,
                  group.commits};
  return std::make_unique<NcclCommunicator>(connect_nccl(std::move(child), deadline));
}

Tensor NcclCommunicator::allocate(Bytes bytes) {
  watchdog_->finish_operations("allocate");
  NcclGroup const& group = watchdog_->group();
  Deadline const deadline = Deadline::after(group.waiting.timeout);
  check_allocation_sizes(exchange("allocate", std::vector<std::uint64_t>{bytes.value}, deadline),
                         group.world_ranks);
  return make_on_every_rank(
      bytes, group.world_ranks, [&] { return default_allocation(bytes, device()); },
      [&](std::vector<std::uint8_t> const& made) { return exchange("allocated", made, deadline); });
}

}  // namespace ddp

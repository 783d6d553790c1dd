#include "comm/nccl/handles.hpp"

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/nccl/check.hpp"
#include "ddp/core/deadline.hpp"
#include "ddp/core/log.hpp"
#include "ddp/device/recorded_graph.hpp"

namespace ddp {
namespace {

// Waits for what a non-blocking communicator does in a thread of its own.
template <class Check>
void wait_for(ncclComm_t communicator, std::string_view doing, Check const& check) {
  for (;;) {
    ncclResult_t state = ncclSuccess;
    nccl::check(ncclCommGetAsyncError(communicator, &state), doing);
    if (state == ncclSuccess) return;
    Deadline const news = Deadline::after(nccl::kLostRankGrace);
    do {
      check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (state != ncclInProgress && !news.expired());
    nccl::check(state, doing);
  }
}

}  // namespace

NcclHandles::~NcclHandles() {
  if (first_ != nullptr || guard_ != nullptr || work_ != nullptr) {
    log(LogLevel::error, "an NCCL communicator was neither closed nor aborted");
  }
}

void NcclHandles::open(std::function<void()> const& check) {
  constexpr std::string_view kConnecting = "connecting ranks";
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;  // for communicators split from it
  if (most_ctas_ > 0) config.maxCTAs = most_ctas_;
  nccl::check(ncclCommInitRankConfig(&first_, size_, id_, rank_.value(), &config), kConnecting);
  wait_for(first_, kConnecting, check);

  ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
  blocking.blocking = 1;
  if (most_ctas_ > 0) blocking.maxCTAs = most_ctas_;
  split(work_, blocking, check);
  ncclConfig_t smallest = NCCL_CONFIG_INITIALIZER;
  smallest.blocking = 0;
  smallest.maxCTAs = 1;
  split(guard_, smallest, check);
  end(first_, check);
  is_open_ = true;
}

void NcclHandles::split(ncclComm_t& into, ncclConfig_t& config, std::function<void()> const& check) {
  constexpr std::string_view kSplitting = "splitting a communicator";
  // Sets `into` when it is done; the state of the first communicator tells when.
  nccl::check(ncclCommSplit(first_, 0, rank_.value(), &into, &config), kSplitting);
  wait_for(first_, kSplitting, check);
  if (into == nullptr) throw CommError(ErrorCode::io, "NCCL split a communicator and gave none");
}

ncclResult_t NcclHandles::asynchronous_error() const {
  if (!is_open_) return ncclSuccess;
  for (auto* const communicator : {work_, guard_}) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t const asked = ncclCommGetAsyncError(communicator, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclSuccess && state != ncclInProgress) return state;
  }
  return ncclSuccess;
}

void NcclHandles::keep(std::weak_ptr<RecordedGraph> graph) {
  std::erase_if(graphs_, [](auto const& kept) { return kept.expired(); });
  graphs_.push_back(std::move(graph));
}

void NcclHandles::destroy_graphs() noexcept {
  for (auto const& kept : graphs_) {
    if (auto const graph = kept.lock()) graph->destroy();
  }
  graphs_.clear();
}

void NcclHandles::abort(std::function<void()> const& leave) noexcept {
  auto const stop = [](ncclComm_t& communicator) {
    ncclResult_t const result = ncclCommAbort(std::exchange(communicator, nullptr));
    if (result == ncclSuccess || result == ncclInProgress) return;
    log(LogLevel::debug, nccl::describe(result, "aborting a communicator"));
  };
  if (!is_open_) leave();  // a thread that is in open() sees the failure and gives up
  if (first_ != nullptr) stop(first_);
  if (guard_ != nullptr) stop(guard_);
  leave();
  destroy_graphs();
  if (work_ != nullptr) stop(work_);
}

void NcclHandles::close() {
  if (!is_open_) return abort([] {});
  destroy_graphs();
  end(work_, [] {});
  end(guard_, [] {});
}

void NcclHandles::end(ncclComm_t& communicator, std::function<void()> const& check) {
  constexpr std::string_view kClosing = "closing a communicator";
  nccl::check(ncclCommFinalize(communicator), kClosing);
  wait_for(communicator, kClosing, check);
  nccl::check(ncclCommDestroy(std::exchange(communicator, nullptr)), kClosing);
}

}  // namespace ddp

// Reductions that combine ranks in rank order, beside what backends of host memory compute. Ranks are
// threads, and NCCL is a few queues between them.
#include "comm/nccl/rank_order.hpp"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/kernels/reduce_kernels.hpp"
#include "ddp/core/half.hpp"
#include "ddp/core/text.hpp"
#include "support/ranks/run_ranks.hpp"

namespace {

using Message = std::vector<std::byte>;

struct Network {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<int, int>, std::deque<Message>> messages;  // by sender and receiver
};

// What a thread has called since ncclGroupStart().
struct Pending {
  std::vector<std::function<void()>> sends, receives;
  int launches = 0;
};
thread_local Pending pending;

}  // namespace

struct ncclComm {
  Network* network;
  int rank;
  int size;
};

extern "C" {

ncclResult_t ncclSend(void const* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t /*stream*/) {
  std::size_t const bytes = count * (type == ncclFloat64 ? sizeof(double) : 1);
  pending.sends.emplace_back([=] {
    auto const* const begin = static_cast<std::byte const*>(data);
    std::lock_guard const lock(comm->network->mutex);
    comm->network->messages[{comm->rank, peer}].emplace_back(begin, begin + bytes);
    comm->network->arrived.notify_all();
  });
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t /*stream*/) {
  std::size_t const bytes = count * (type == ncclFloat64 ? sizeof(double) : 1);
  pending.receives.emplace_back([=] {
    std::unique_lock lock(comm->network->mutex);
    auto& queue = comm->network->messages[{peer, comm->rank}];
    comm->network->arrived.wait(lock, [&] { return !queue.empty(); });
    ASSERT_EQ(queue.front().size(), bytes) << "rank " << peer << " sent something else to " << comm->rank;
    std::memcpy(data, queue.front().data(), bytes);
    queue.pop_front();
  });
  return ncclSuccess;
}
ncclResult_t ncclAllGather(void const* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  EXPECT_EQ(in, static_cast<std::byte*>(out) + static_cast<std::size_t>(comm->rank) * count) << "in place";
  for (int r = 0; r < comm->size; ++r) {
    if (r == comm->rank) continue;
    static_cast<void>(ncclSend(in, count, type, r, comm, stream));
    static_cast<void>(ncclRecv(static_cast<std::byte*>(out) + static_cast<std::size_t>(r) * count, count,
                               type, r, comm, stream));
  }
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (!pending.sends.empty() || !pending.receives.empty()) ++pending.launches;
  for (auto const& send : std::exchange(pending.sends, {})) send();
  for (auto const& receive : std::exchange(pending.receives, {})) receive();
  return ncclSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

}  // extern "C"

namespace ddp::cuda {

void reduce_in_rank_order(void* out, RankElements const& from, std::size_t count, DType dtype,
                          ReduceOp::Kind kind, Stream& /*stream*/) {
  std::vector<ReduceSource> sources;
  for (std::size_t r = 0; r < from.ranks; ++r) {
    auto const* const others = static_cast<std::byte const*>(from.others);
    void const* const data = r == from.rank ? from.own : others + (r < from.rank ? r : r - 1) * from.pitch;
    sources.push_back({data, from.factors == nullptr ? 1 : from.factors[r]});
  }
  reduce_elements({&out, 1}, sources, count, dtype, kind, from.factors != nullptr);
}
void load_reduce_in_rank_order(DType /*dtype*/) {}

}  // namespace ddp::cuda

namespace ddp::testing {
namespace {

using Kind = ReduceOp::Kind;

// Fewer elements than ranks, all at once, parts with and without a rest.
constexpr std::size_t kCounts[] = {1, 5, 1000, 33'001, 65'536, 100'003};

template <class T>
std::vector<T> numbers_of(std::size_t rank, std::size_t count) {
  auto random = static_cast<std::uint32_t>(rank * 7919 + count);
  std::vector<T> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    random = random * 1664525 + 1013904223;
    numbers.push_back(T((static_cast<float>(random) - 2e9F) / 3e6F));
  }
  return numbers;
}

double factor_of(std::size_t rank) { return rank == 1 ? 0.0 : 1.0 / (3.0 + static_cast<double>(rank)); }

template <class T>
std::vector<T> expected(int ranks, std::size_t count, Kind kind, bool scaled) {
  std::vector<std::vector<T>> all;
  std::vector<ReduceSource> sources;
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) all.push_back(numbers_of<T>(r, count));
  for (std::size_t r = 0; r < all.size(); ++r)
    sources.push_back({all[r].data(), scaled ? factor_of(r) : 1.0});
  std::vector<T> result(count);
  void* const to = result.data();
  reduce_elements({&to, 1}, sources, count, dtype_of<T>, kind, scaled);
  return result;
}

template <class T>
void expect_bits(std::span<T const> found, std::span<T const> wanted, std::string const& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  EXPECT_EQ(std::memcmp(found.data(), wanted.data(), wanted.size_bytes()), 0) << what;
}

/// Calls body(order, rank) on each of `size` ranks.
template <class Body>
void on_ranks(int size, Body body) {
  Network network;
  run_ranks(size, [&](int r) {
    ncclComm comm{&network, r, size};
    NcclRankOrder order(Device{}, Rank{r}, static_cast<std::size_t>(size), &comm);
    body(order, static_cast<std::size_t>(r));
  });
}

ncclResult_t refuse(Operation const& /*operation*/) { return ncclInvalidUsage; }

template <class T>
void expect_all_reduces(int size, Kind kind, bool scaled, bool in_place) {
  on_ranks(size, [&](NcclRankOrder& order, std::size_t rank) {
    CudaStream stream(Device{}, nullptr);
    double const factor = factor_of(rank);
    for (std::size_t const count : kCounts) {
      auto in = numbers_of<T>(rank, count);
      std::vector<T> elsewhere(count);
      Operation const operation{.kind = OperationKind::all_reduce,
                                .in = in.data(),
                                .out = in_place ? in.data() : elsewhere.data(),
                                .count = count,
                                .dtype = dtype_of<T>,
                                .op = {kind, scaled ? &factor : nullptr}};
      ASSERT_EQ(order.launch({&operation, 1}, stream, refuse), ncclSuccess);
      expect_bits<T>(
          in_place ? in : elsewhere, expected<T>(size, count, kind, scaled),
          text("rank ", rank, " of ", size, ", ", to_string(kind), " of ", dtype_of<T>, "[", count, "]"));
    }
  });
}

TEST(NcclRankOrder, R18AllReducesHaveTheBitsOfHostMemory) {
  for (int const size : {2, 3, 5}) {
    for (Kind const kind : {Kind::sum, Kind::average, Kind::product}) {
      expect_all_reduces<float>(size, kind, false, true);
      expect_all_reduces<bfloat16>(size, kind, false, false);
    }
    expect_all_reduces<double>(size, Kind::average, false, false);
    expect_all_reduces<float16>(size, Kind::sum, false, true);
  }
}

TEST(NcclRankOrder, R18FactorsGoWithTheElements) {
  for (int const size : {2, 3, 5}) {
    expect_all_reduces<float>(size, Kind::sum, true, true);
    expect_all_reduces<bfloat16>(size, Kind::sum, true, true);
  }
}

TEST(NcclRankOrder, R18PartsOfAReduceScatterAndTheRootsOfReduces) {
  constexpr std::size_t kPart = 4321;
  constexpr int kSize = 3;
  on_ranks(kSize, [&](NcclRankOrder& order, std::size_t rank) {
    CudaStream stream(Device{}, nullptr);
    std::size_t const count = kSize * kPart;
    auto const wanted = expected<float>(kSize, count, Kind::average, false);
    for (bool const in_place : {false, true}) {
      auto in = numbers_of<float>(rank, count);
      std::vector<float> elsewhere(kPart);
      float* const out = in_place ? in.data() + rank * kPart : elsewhere.data();
      Operation const scattered{.kind = OperationKind::reduce_scatter,
                                .in = in.data(),
                                .out = out,
                                .count = kPart,
                                .dtype = DType::f32,
                                .op = ReduceOp::average()};
      ASSERT_EQ(order.launch({&scattered, 1}, stream, refuse), ncclSuccess);
      expect_bits<float>({out, kPart}, std::span(wanted).subspan(rank * kPart, kPart),
                         text("part of rank ", rank));
    }
    auto const in = numbers_of<float>(rank, count);
    std::vector<float> result(rank == 1 ? count : 0);
    Operation const reduced{.kind = OperationKind::reduce,
                            .in = in.data(),
                            .out = rank == 1 ? result.data() : nullptr,
                            .count = count,
                            .dtype = DType::f32,
                            .op = ReduceOp::average(),
                            .root = Rank{1}};
    ASSERT_EQ(order.launch({&reduced, 1}, stream, refuse), ncclSuccess);
    if (rank == 1) expect_bits<float>(result, wanted, "at the root");
  });
}

// As the buckets of a step are sent, with its last words, which are no sums of floating point numbers.
TEST(NcclRankOrder, R18AGroupTakesTwoLaunchesAndLeavesOtherOperationsToNccl) {
  on_ranks(3, [](NcclRankOrder& order, std::size_t rank) {
    CudaStream stream(Device{}, nullptr);
    auto one = numbers_of<float>(rank, 100'003);
    auto other = numbers_of<bfloat16>(rank, 77);
    std::uint8_t word = 1;
    auto const all_reduce = [](auto& elements, DType dtype, ReduceOp op) {
      return Operation{.kind = OperationKind::all_reduce,
                       .in = elements.data(),
                       .out = elements.data(),
                       .count = elements.size(),
                       .dtype = dtype,
                       .op = op};
    };
    std::vector<Operation> const operations{all_reduce(one, DType::f32, ReduceOp::average()),
                                            {.kind = OperationKind::all_reduce,
                                             .in = &word,
                                             .out = &word,
                                             .count = 1,
                                             .dtype = DType::u8,
                                             .op = ReduceOp::max()},
                                            all_reduce(other, DType::bf16, ReduceOp::sum())};
    std::vector<DType> left;
    pending.launches = 0;
    ncclResult_t const result = order.launch(operations, stream, [&](Operation const& each) {
      left.push_back(each.dtype);
      return ncclSuccess;
    });
    ASSERT_EQ(result, ncclSuccess);
    EXPECT_THAT(left, ::testing::ElementsAre(DType::u8));
    EXPECT_EQ(pending.launches, 2);
    expect_bits<float>(one, expected<float>(3, one.size(), Kind::average, false), "the first");
    expect_bits<bfloat16>(other, expected<bfloat16>(3, other.size(), Kind::sum, false), "the last");
  });
}

TEST(NcclRankOrder, OrderMattersToSumsOfFloatingPointNumbersOnly) {
  Operation operation{
      .kind = OperationKind::all_reduce, .count = 1, .dtype = DType::f32, .op = ReduceOp::sum()};
  EXPECT_TRUE(NcclRankOrder::matters(operation));
  operation.op = ReduceOp::max();
  EXPECT_FALSE(NcclRankOrder::matters(operation));
  operation.op = ReduceOp::sum();
  operation.dtype = DType::i64;
  EXPECT_FALSE(NcclRankOrder::matters(operation));
  operation.dtype = DType::f32;
  operation.kind = OperationKind::all_gather;
  EXPECT_FALSE(NcclRankOrder::matters(operation));
}

}  // namespace
}  // namespace ddp::testing

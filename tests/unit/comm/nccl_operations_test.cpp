// What an average becomes: calls of NCCL, and kernels behind them. Neither NCCL nor a GPU is there.
#include <gmock/gmock.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/kernels/cuda_kernels.hpp"
#include "comm/nccl/communicator.hpp"
#include "ddp/core/half.hpp"
#include "ddp/core/text.hpp"
#include "support/errors.hpp"
#include "support/fakes/fake_cuda_events.hpp"
#include "support/fakes/fake_nccl_ranks.hpp"

namespace {

using namespace ddp;

// Of the calling thread, which is a rank.
struct Calls {
  std::vector<std::string> made;        // in order
  std::vector<std::string> reductions;  // that the rank had NCCL make
  std::vector<void const*> reduced;     // where NCCL's results are
};
Calls& calls() {
  static thread_local Calls mine;
  return mine;
}

std::string name_of(ncclRedOp_t reduction) {
  if (reduction == ncclSum) return "sum";
  if (reduction == ncclAvg) return "avg";
  return calls().reductions.at(static_cast<std::size_t>(reduction) - ncclNumOps);
}

ncclResult_t reduce(char const* call, void const* to, std::size_t count, ncclRedOp_t reduction) {
  calls().made.push_back(text(call, " of ", count, ": ", name_of(reduction)));
  calls().reduced.push_back(to);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t /*comm*/) {
  std::string factor = "something else";
  if (residence == ncclScalarHostImmediate && datatype == ncclBfloat16) {
    bfloat16 value;
    std::memcpy(&value, scalar, sizeof(value));
    factor = text(static_cast<float>(value), " in bf16");
  }
  *op = static_cast<ncclRedOp_t>(static_cast<std::size_t>(ncclNumOps) + calls().reductions.size());
  calls().reductions.push_back("sum times " + factor);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(void const* /*sendbuff*/, void* recvbuff, std::size_t count,
                           ncclDataType_t /*datatype*/, ncclRedOp_t op, ncclComm_t /*comm*/,
                           cudaStream_t /*stream*/) {
  return reduce("all_reduce", recvbuff, count, op);
}
ncclResult_t ncclReduce(void const* /*sendbuff*/, void* recvbuff, std::size_t count,
                        ncclDataType_t /*datatype*/, ncclRedOp_t op, int /*root*/, ncclComm_t /*comm*/,
                        cudaStream_t /*stream*/) {
  return reduce("reduce", recvbuff, count, op);
}
ncclResult_t ncclReduceScatter(void const* /*sendbuff*/, void* recvbuff, std::size_t recvcount,
                               ncclDataType_t /*datatype*/, ncclRedOp_t op, ncclComm_t /*comm*/,
                               cudaStream_t /*stream*/) {
  return reduce("reduce_scatter", recvbuff, recvcount, op);
}
ncclResult_t ncclGroupStart() {
  calls().made.emplace_back("group");
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  calls().made.emplace_back("end");
  return ncclSuccess;
}

}  // extern "C"

namespace ddp::cuda {

void multiply_elements(void* data, std::size_t count, DType dtype, double by, Stream& /*stream*/) {
  auto const& reduced = calls().reduced;
  EXPECT_NE(std::find(reduced.begin(), reduced.end(), data), reduced.end()) << "NCCL has no result there";
  calls().made.push_back(text("multiply ", count, " of ", dtype, " by ", by));
}
void load_multiply_elements(DType /*dtype*/) {}

}  // namespace ddp::cuda

namespace ddp::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 12;
constexpr Rank kRoot{1};

class NcclOperations : public FakeNcclRanks {
 protected:
  /// Calls body(communicator, stream, memory) on each rank, in which calls() has nothing yet.
  template <class Body>
  void on_communicators(int size, Body body) {
    on_ranks(size, std::chrono::minutes(1), [&](NcclConnection connection, int) {
      std::vector<bfloat16> memory(kCount);
      CudaStream stream(Device{}, nullptr);
      NcclCommunicator comm(std::move(connection));
      comm.barrier(stream);  // after which it has all that it makes of NCCL
      calls().made.clear();
      body(comm, stream, view_of(std::span(memory)));
    });
  }

  /// What a rank has called since the last time.
  static std::vector<std::string> called() { return std::exchange(calls().made, {}); }
};

// With GPUs this takes three of them.
TEST_F(NcclOperations, AnAverageOfThreeRanksIn16BitsIsMultipliedWhereItsResultIs) {
  on_communicators(3, [](NcclCommunicator& comm, CudaStream& stream, TensorView const& memory) {
    ReduceOp const average = ReduceOp::average();
    std::string const sum = "sum times 0.25 in bf16";
    std::string const multiply = text(" of bf16 by ", 4.0 / 3);
    comm.all_reduce(memory, average, stream);
    EXPECT_THAT(called(), ElementsAre("all_reduce of 12: " + sum, "multiply 12" + multiply));
    comm.reduce(memory, memory, average, kRoot, stream);
    if (comm.rank() == kRoot) {
      EXPECT_THAT(called(), ElementsAre("reduce of 12: " + sum, "multiply 12" + multiply));
    } else {
      EXPECT_THAT(called(), ElementsAre("reduce of 12: " + sum));
    }
    comm.reduce_scatter(memory, slice(memory, 4 * comm.rank().index(), 4), average, stream);
    EXPECT_THAT(called(), ElementsAre("reduce_scatter of 4: " + sum, "multiply 4" + multiply));
  });
}

TEST_F(NcclOperations, TheMultiplicationsOfAGroupComeBehindIt) {
  on_communicators(3, [](NcclCommunicator& comm, CudaStream& stream, TensorView const& memory) {
    comm.group([&] {
      comm.all_reduce(slice(memory, 0, 8), ReduceOp::average(), stream);
      comm.all_reduce(slice(memory, 8, 4), ReduceOp::sum(), stream);
    });
    EXPECT_THAT(called(),
                ElementsAre("group", "all_reduce of 8: sum times 0.25 in bf16", "all_reduce of 4: sum", "end",
                            text("multiply 8 of bf16 by ", 4.0 / 3)));
  });
}

TEST_F(NcclOperations, AnAverageOfTwoOrFourRanksIsLeftToNccl) {
  for (int const size : {2, 4}) {
    on_communicators(size, [&](NcclCommunicator& comm, CudaStream& stream, TensorView const& memory) {
      std::size_t const part = kCount / static_cast<std::size_t>(size);
      comm.all_reduce(memory, ReduceOp::average(), stream);
      comm.reduce(memory, memory, ReduceOp::average(), kRoot, stream);
      comm.reduce_scatter(memory, slice(memory, part * comm.rank().index(), part), ReduceOp::average(),
                          stream);
      EXPECT_THAT(called(), ElementsAre("all_reduce of 12: avg", "reduce of 12: avg",
                                        text("reduce_scatter of ", part, ": avg")));
    });
  }
}

// A World whose program never uses its communicator takes none of the GPU's memory for it.
TEST_F(NcclOperations, TheFirstOneConnectsTheRanks) {
  opens_ = false;
  on_ranks(3, 1min, [](NcclConnection connection, int) {
    auto const control = connection.group.control;
    auto const meet = [&](char const* when) { control->barrier(when, Deadline::after(1min)); };
    CudaStream stream(Device{}, nullptr);
    {
      NcclCommunicator comm(std::move(connection));
      meet("made");
      EXPECT_EQ(fake_nccl::open_communicators(), 0);
      meet("looked");
      comm.barrier(stream);
      meet("called");
      EXPECT_EQ(fake_nccl::open_communicators(), 6);
      meet("looked again");
    }
  });
}

TEST_F(NcclOperations, F9ARankThatDoesNotCallTheFirstOneIsNamed) {
  opens_ = false;
  on_ranks(3, 300ms, [](NcclConnection connection, int rank) {
    auto const control = connection.group.control;
    CudaStream stream(Device{}, nullptr);
    NcclCommunicator comm(std::move(connection));
    if (rank != 1) {
      auto const error = error_of<CommError>([&] { comm.barrier(stream); });
      EXPECT_EQ(error.failure().manner, Failure::Manner::silent) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("0.3 s in operation 1, barrier for rank 1"));
    }
    control->barrier("over", Deadline::after(1min));
    EXPECT_THROW(comm.barrier(stream), CommError);
  });
}

TEST_F(NcclOperations, F8RanksThatCallDifferentFirstOnesAreNamed) {
  opens_ = false;
  on_ranks(2, 1min, [](NcclConnection connection, int rank) {
    std::vector<float> memory(kCount);
    CudaStream stream(Device{}, nullptr);
    NcclCommunicator comm(std::move(connection));
    auto const error = error_of<CommError>([&] {
      if (rank == 0) comm.barrier(stream);
      if (rank == 1) comm.all_reduce(view_of(std::span(memory)), ReduceOp::sum(), stream);
      for (Deadline const give_up = Deadline::after(30s); !give_up.expired();) {  // the watchdog looks soon
        comm.check_health();
        std::this_thread::sleep_for(1ms);
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
  });
}

// NCCL may take longer to connect ranks than an operation may.
TEST_F(NcclOperations, TheFirstOneMayTakeLongerThanItsDeadline) {
  opens_ = false;
  init_timeout_ = 1min;
  fake_nccl::connect_in(1200ms);
  on_ranks(2, 300ms, [](NcclConnection connection, int) {
    CudaStream stream(Device{}, nullptr);
    NcclCommunicator comm(std::move(connection));
    EXPECT_NO_THROW(comm.barrier(stream));
  });
}

TEST_F(NcclOperations, TheFirstOneCannotBeCaptured) {
  opens_ = false;
  fake_cuda::set_capturing(true);
  on_ranks(2, 1min, [](NcclConnection connection, int) {
    CudaStream stream(Device{}, nullptr);
    NcclCommunicator comm(std::move(connection));
    EXPECT_THAT(error_of([&] { comm.barrier(stream); }).what(), HasSubstr("call one before the capture"));
    EXPECT_NO_THROW(comm.check_health());
  });
  fake_cuda::set_capturing(false);
}

}  // namespace
}  // namespace ddp::testing

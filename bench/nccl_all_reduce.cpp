#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <exception>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/cuda_stream.hpp"
#include "gpu.hpp"
#include "ranks.hpp"

namespace ddp::bench {
namespace {

void check(ncclResult_t result, char const* doing) {
  if (result == ncclSuccess) return;
  throw Error(ErrorCode::device,
              text(doing, ": ", ncclGetErrorString(result), ": ", ncclGetLastError(nullptr)));
}

class NcclAllReduce final : public PlainAllReduce {
 public:
  explicit NcclAllReduce(World const& world) : exceptions_(std::uncaught_exceptions()) {
    ncclUniqueId id{};
    if (world.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::string const all =
        gather(world, "plain-nccl", std::string(id.internal, sizeof(id.internal))).front();
    std::memcpy(id.internal, all.data(), sizeof(id.internal));
    check(ncclCommInitRank(&comm_, world.size(), id, world.rank().value()), "ncclCommInitRank");
  }
  // Ranks that failed are not waited for.
  ~NcclAllReduce() override {
    bool const failed = std::uncaught_exceptions() > exceptions_;
    static_cast<void>(failed ? ncclCommAbort(comm_) : ncclCommDestroy(comm_));
  }
  NcclAllReduce(NcclAllReduce const&) = delete;
  NcclAllReduce& operator=(NcclAllReduce const&) = delete;

  void sum(TensorView const& in_out, Stream& stream) override {
    check(ncclAllReduce(in_out.data, in_out.data, in_out.count(), ncclFloat32, ncclSum, comm_,
                        cuda_stream(stream).handle()),
          "ncclAllReduce");
  }

 private:
  int exceptions_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<PlainAllReduce> make_plain_all_reduce(World const& world) {
  if (world.communicator().backend() != "nccl") return nullptr;
  return std::make_unique<NcclAllReduce>(world);
}

std::string gpu_library_versions() {
  int cuda = 0;
  int nccl = 0;
  static_cast<void>(cudaRuntimeGetVersion(&cuda));
  static_cast<void>(ncclGetVersion(&nccl));
  return text("CUDA ", cuda / 1000, '.', cuda % 1000 / 10, ", NCCL ", nccl / 10000, '.', nccl % 10000 / 100,
              '.', nccl % 100);
}

}  // namespace ddp::bench

#include "mpi_all_reduce.hpp"

#include <mpi.h>

#include "ddp/core/error.hpp"

namespace ddp::bench {
namespace {

class MpiAllReduce final : public PlainAllReduce {
 public:
  MpiAllReduce() {
    if (MPI_Comm_dup(MPI_COMM_WORLD, &comm_) != MPI_SUCCESS)
      throw Error(ErrorCode::io, "MPI_Comm_dup failed");
  }
  ~MpiAllReduce() override { MPI_Comm_free(&comm_); }
  MpiAllReduce(MpiAllReduce const&) = delete;
  MpiAllReduce& operator=(MpiAllReduce const&) = delete;

  void sum(TensorView const& in_out, Stream& stream) override {
    stream.synchronize();
    MPI_Allreduce(MPI_IN_PLACE, in_out.data, static_cast<int>(in_out.count()), MPI_FLOAT, MPI_SUM, comm_);
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace

std::unique_ptr<PlainAllReduce> make_mpi_all_reduce(World const& world) {
  int started = 0;
  MPI_Initialized(&started);
  if (started == 0 || world.device().kind != DeviceKind::cpu) return nullptr;
  return std::make_unique<MpiAllReduce>();
}

}  // namespace ddp::bench

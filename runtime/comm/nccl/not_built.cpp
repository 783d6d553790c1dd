#include "comm/kernels/cuda_kernels.hpp"
#include "comm/nccl/communicator.hpp"
#include "ddp/core/error.hpp"

namespace ddp {

std::unique_ptr<Communicator> make_nccl_communicator(MemberGroup const& /*group*/, Device /*device*/,
                                                     CommunicatorOptions const& /*options*/) {
  throw Error(ErrorCode::unsupported, "the nccl backend needs CUDA, and this build of ddp has none");
}

namespace cuda {

void scale_elements(void* /*out*/, void const* /*in*/, std::size_t /*count*/, DType /*dtype*/,
                    double const* /*factor*/, Stream& /*stream*/) {
  throw Error(ErrorCode::unsupported, "scaling elements on a GPU needs CUDA, and this build of ddp has none");
}

void add_elements(void* /*to*/, Addends const& /*from*/, std::size_t /*count*/, DType /*dtype*/,
                  Stream& /*stream*/) {
  throw Error(ErrorCode::unsupported, "adding elements on a GPU needs CUDA, and this build of ddp has none");
}

}  // namespace cuda
}  // namespace ddp

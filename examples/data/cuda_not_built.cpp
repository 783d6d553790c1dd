// A build without CUDA makes no stream of a GPU, so that no program gets here.
#include "data/gather.hpp"
#include "ddp/core/text.hpp"

namespace data::cuda {

void gather(nn::Context const& context, DeviceSet const& /*set*/, ddp::TensorView const& /*indices*/,
            ddp::TensorView const& /*inputs*/, ddp::TensorView const& /*labels*/) {
  throw ddp::Error(ddp::ErrorCode::unsupported,
                   ddp::text("data/ was built without CUDA and cannot work on ", context.device()));
}

}  // namespace data::cuda

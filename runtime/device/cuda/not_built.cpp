#include "ddp/core/text.hpp"
#include "ddp/device/queries.hpp"
#include "ddp/device/recorded_graph.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"

namespace ddp::cuda {
namespace {

[[noreturn]] void refuse(char const* what) {
  throw Error(ErrorCode::unsupported,
              text(what,
                   " needs CUDA, and this build of ddp has none; configure with a CUDA toolkit and NCCL "
                   "(DDP_WITH_CUDA=ON says what is missing)"));
}

}  // namespace

bool is_built() noexcept { return false; }
std::vector<LogicalDevice> visible_devices() { return {}; }
std::string why_no_devices() { return "this build of ddp has no CUDA"; }
MemoryInfo memory_info(int /*visible*/) { refuse("memory_info of a GPU"); }
DeviceProperties device_properties(int /*visible*/) { refuse("device_properties of a GPU"); }
int runtime_version() noexcept { return 0; }
int current_device() { refuse("the current GPU"); }
void set_current_device(int /*visible*/) { refuse("a current GPU"); }
void* current_context() noexcept { return nullptr; }
void set_current_context(void* /*context*/) { refuse("a context of a GPU"); }
void* primary_context(int /*visible*/) { refuse("a context of a GPU"); }
bool has_context(int /*visible*/) { return false; }
void choose_queue(Stream& comm, Stream& /*compute*/) { refuse(text("a stream of ", comm.device()).c_str()); }
std::unique_ptr<Stream> make_stream(Device device, bool /*for_communication*/) {
  refuse(text("a stream of ", device).c_str());
}
bool forget_failures(Stream& /*stream*/) noexcept { return true; }
std::unique_ptr<Event::Mark> make_mark(Device device) { refuse(text("an event of ", device).c_str()); }
Tensor zeros(Shape const& /*shape*/, DType /*dtype*/, Device device) {
  refuse(text("memory of ", device).c_str());
}
// Nobody copies to a GPU: any host memory will do.
Tensor pinned_zeros(Shape const& shape, DType dtype) { return Tensor::zeros(shape, dtype); }
Bytes pool_reserved(Device /*device*/) { return Bytes{}; }
void empty_cache(Device /*device*/) {}
void* pool_handle(Device /*device*/) { return nullptr; }
std::optional<MemoryPlace> place_of(void const* /*address*/) { return std::nullopt; }
void zero_fill(TensorView const& tensor, Stream& /*stream*/) { refuse(describe(tensor).c_str()); }
void copy(std::span<Copy const> /*copies*/, Stream& /*stream*/) { refuse("a copy of GPU memory"); }
void convert(std::span<Copy const> /*copies*/, Stream& /*stream*/,
             std::span<std::uint8_t* const> /*nonfinite*/) {
  refuse("a conversion of GPU memory");
}
void load_conversion(DType /*to*/, DType /*from*/) { refuse("a conversion of GPU memory"); }
void copy_block(BlockCopy const& /*copy*/, Stream& /*stream*/) { refuse("a copy of GPU memory"); }
void fill_random(TensorView const& tensor, RandomFill const& /*how*/, Stream& /*stream*/) {
  refuse(text("random numbers for ", describe(tensor)).c_str());
}
std::shared_ptr<RecordedGraph> make_recorded_graph() { refuse("a recorded step"); }

}  // namespace ddp::cuda

namespace ddp {

void RecordedGraph::replace_memsets(CUgraph_st* /*graph*/, Device /*device*/) {
  cuda::refuse("a recorded step");
}
void RecordedGraph::throw_destroyed() { cuda::refuse("a recorded step"); }
void RecordedGraph::set_event(Event const& /*recorded*/, Event const& /*now*/) {
  cuda::refuse("a recorded step");
}

}  // namespace ddp

#include "comm/default_allocation.hpp"

#include <cstdint>
#include <exception>
#include <vector>

#include "comm/collective_arguments.hpp"
#include "comm/shared_memory.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"

namespace ddp {
namespace {

// Every rank's number, right now, in this thread.
std::vector<std::int64_t> gather_now(Communicator& host, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(host.size()));
  host.all_gather(view_of(std::span(&mine, 1)), view_of(std::span(all)), *HostStream::inline_stream());
  return all;
}

}  // namespace

Tensor default_allocation(Bytes bytes, Device device) {
  bool const on_cpu = device.kind == DeviceKind::cpu;
  // The kernel would promise more than there is, and kill whoever uses it.
  Bytes const most = on_cpu ? SharedMemory::available() : memory_info(device).total;
  if (bytes > most) {
    throw Error(ErrorCode::out_of_memory, text("allocate: ", to_string(bytes), " asked for, ", device,
                                               " has ", to_string(most), on_cpu ? " available" : " in all"));
  }
  return zeros(Shape{bytes.value}, DType::u8, device);
}

Tensor default_allocation_together(Communicator& host, Bytes bytes, Device device,
                                   std::span<Rank const> world_ranks) {
  auto const sizes = gather_now(host, static_cast<std::int64_t>(bytes.value));
  check_allocation_sizes(std::vector<std::uint64_t>(sizes.begin(), sizes.end()), world_ranks);
  Tensor memory;
  std::exception_ptr problem;
  try {
    memory = default_allocation(bytes, device);
  } catch (std::exception const&) {
    problem = std::current_exception();
  }
  auto const made = gather_now(host, problem ? 0 : 1);
  if (problem) std::rethrow_exception(problem);
  for (std::size_t r = 0; r < made.size(); ++r) {
    if (made[r] != 0) continue;
    throw Error(ErrorCode::out_of_memory,
                text("allocate: rank ", world_ranks[r], " has no memory for ", to_string(bytes)));
  }
  return memory;
}

}  // namespace ddp

#include "comm/default_allocation.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/collective_arguments.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "device/memory/host_memory.hpp"

namespace ddp {
namespace {

// Gathers every rank's values, at once and in this thread.
template <class T>
std::vector<T> gather_now(Communicator& host, std::vector<T> mine) {
  std::vector<T> all(mine.size() * static_cast<std::size_t>(host.size()));
  host.all_gather(view_of(std::span(mine)), view_of(std::span(all)), *HostStream::inline_stream());
  return all;
}

}  // namespace

Tensor default_allocation(Bytes bytes, Device device) {
  bool const on_cpu = device.kind == DeviceKind::cpu;
  // The kernel would promise more memory than there is, and kill a process that uses it.
  Bytes const most = on_cpu ? host_memory().free : memory_info(device).total;
  if (bytes > most) {
    throw Error(ErrorCode::out_of_memory, text("allocate: ", to_string(bytes), " asked for, ", device,
                                               " has ", to_string(most), on_cpu ? " available" : " in all"));
  }
  return zeros(Shape{bytes.value}, DType::u8, device);
}

Tensor default_allocation_together(Communicator& host, Bytes bytes, Device device,
                                   std::span<Rank const> world_ranks) {
  auto const sizes = gather_now(host, std::vector{static_cast<std::int64_t>(bytes.value)});
  check_allocation_sizes(std::vector<std::uint64_t>(sizes.begin(), sizes.end()), world_ranks);
  return make_on_every_rank(
      bytes, world_ranks, [&] { return default_allocation(bytes, device); },
      [&](std::vector<std::uint8_t> mine) { return gather_now(host, std::move(mine)); });
}

}  // namespace ddp

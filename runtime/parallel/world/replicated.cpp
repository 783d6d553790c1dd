#include "ddp/parallel/replicated.hpp"

#include <utility>

#include "core/record.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "parallel/world/world_rebuild.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {

Replicated::Replicated(World const& world, std::vector<Part> const& parts, std::function<void()> go_back)
    : go_back_(std::move(go_back)) {
  WorldState& state = WorldAccess::state(world);
  for (Part const& part : parts) {
    for (NamedTensor const& tensor : part.tensors_) {
      tensors_.push_back(tensor.value);
      form_ += text(tensor.name, tensor.name.empty() ? "" : " ", tensor.value.dtype, tensor.value.shape,
                    " on ", to_string(tensor.value.device.kind), '\n');
    }
  }
  host_values_ = std::make_shared<HostValues>(tensors_);
  std::erase_if(state.host_values, [](auto const& each) { return each.expired(); });
  state.host_values.push_back(host_values_);
  if (state.newcomer) {
    take_part(state, *this);
    return;
  }
  auto const all = world.control().all_gather(text(state.name, "/replicated"), form_, state.members,
                                              Deadline::after(state.options.timeout));
  std::size_t const other = first_to_differ(all);
  if (other == 0) {
    std::string const why = why_not_rebuilt(state, *this);
    if (!why.empty() && world.rank() == 0) {
      log(LogLevel::warning, text("this job could not go on without a lost rank: ", why));
    }
    return;
  }
  FormDifference const found = first_difference(all[0], all[other]);
  auto const show = [](std::string const& line) { return line.empty() ? "missing" : line; };
  throw CommError(
      ErrorCode::mismatch,
      text("Replicated: tensor ", found.line, " of rank ", state.members[other], " is ", show(found.other),
           ", of rank ", state.members[0], " ", show(found.one), "; expected the same on every rank"));
}

}  // namespace ddp

#include "ddp/parallel/replicated.hpp"

#include <algorithm>

#include "core/record.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "parallel/world/world_rebuild.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {
namespace {

std::vector<std::string> fields_of(std::string const& said) {
  RecordReader reader(said);
  std::vector<std::string> fields;
  for (std::string each; reader >> each;) fields.push_back(each);
  return fields;
}

}  // namespace

Replicated::Replicated(World const& world, std::vector<Part> const& parts) {
  WorldState const& state = WorldAccess::state(world);
  std::string said;
  for (Part const& part : parts) {
    for (NamedTensor const& tensor : part.tensors_) {
      tensors_.push_back(tensor.value);
      append_field(said, text(tensor.name, tensor.name.empty() ? "" : " ", tensor.value.dtype,
                              tensor.value.shape, " on ", to_string(tensor.value.device.kind)));
    }
  }
  for (std::string const& field : fields_of(said)) form_ += field + '\n';
  if (state.newcomer) {
    take_part(WorldAccess::state(world), *this);
    return;
  }
  auto const all = world.control().all_gather(text(state.name, "/replicated"), said, state.members,
                                              Deadline::after(state.options.timeout));
  std::size_t const other = first_to_differ(all);
  if (other == 0) {
    std::string const why = why_not_rebuilt(state);
    if (!why.empty() && world.rank() == 0) {
      log(LogLevel::warning, text("this job could not go on without a lost rank: ", why));
    }
    return;
  }
  auto const there = fields_of(all[0]);
  auto const here = fields_of(all[other]);
  auto const [one, another] = std::ranges::mismatch(there, here);
  auto const show = [](auto const& fields, auto const& place) {
    return place == fields.end() ? std::string("missing") : *place;
  };
  throw CommError(ErrorCode::mismatch,
                  text("Replicated: tensor ", one - there.begin(), " of rank ", state.members[other], " is ",
                       show(here, another), ", of rank ", state.members[0], " ", show(there, one),
                       "; expected the same on every rank"));
}

}  // namespace ddp

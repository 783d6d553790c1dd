#include "parallel/replica_check.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "ddp/core/hash.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// One tensor as it is compared and shown: a line "parameter\tname\tf32[3,4] on cpu".
std::string line(char const* what, std::string const& name, TensorView const& value) {
  return text(what, "\t", name, "\t", value.dtype, value.shape, " on ", to_string(value.device.kind), "\n");
}

struct Line {
  std::string what;
  std::string name;
  std::string form;
};

std::vector<Line> parse(std::string const& lines) {
  std::vector<Line> parsed;
  std::istringstream in(lines);
  Line next;
  while (std::getline(in, next.what, '\t') && std::getline(in, next.name, '\t') &&
         std::getline(in, next.form)) {
    parsed.push_back(next);
  }
  return parsed;
}

std::string show(std::vector<Line> const& lines, std::size_t index) {
  if (index >= lines.size()) return "missing";
  std::size_t number = 0;  // among those of its kind
  for (std::size_t i = 0; i < index; ++i) number += lines[i].what == lines[index].what ? 1U : 0U;
  return text(lines[index].what, " ", number, " \"", lines[index].name, "\"");
}

// "rank 2: parameter 7 "fc1.weight" is f32[300,784] on cpu here, f32[256,784] on cpu on rank 0"
std::string difference(Rank rank, std::vector<Line> const& here, Rank first, std::vector<Line> const& there) {
  for (std::size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
    if (i >= here.size() || i >= there.size()) {
      auto const& longer = i < here.size() ? here : there;
      return text("rank ", i < here.size() ? rank : first, " has ", show(longer, i), " of ", longer[i].form,
                  ", rank ", i < here.size() ? first : rank, " has not (", here.size(), " tensors on rank ",
                  rank, ", ", there.size(), " on rank ", first, ")");
    }
    Line const& a = here[i];
    Line const& b = there[i];
    if (a.what != b.what || a.name != b.name) {
      return text("rank ", rank, ": ", show(here, i), " here is ", show(there, i), " on rank ", first,
                  "; models must register the same tensors in the same order");
    }
    if (a.form != b.form) {
      return text("rank ", rank, ": ", show(here, i), " is ", a.form, " here, ", b.form, " on rank ", first);
    }
  }
  return {};
}

void check_names(std::vector<Line> const& lines, Rank rank) {
  std::set<std::string> names;
  for (Line const& each : lines) {
    require(!each.name.empty(),
            text("rank ", rank, ": a ", each.what, " has no name; errors could not tell which"));
    require(names.insert(each.name).second, text("rank ", rank, ": the name \"", each.name,
                                                 "\" stands twice; names tell parameters and buffers apart"));
  }
}

}  // namespace

void check_replicas(ControlPlane& control, std::string const& name, std::span<Rank const> group,
                    std::span<Parameter const> parameters, std::span<Buffer const> buffers,
                    Deadline deadline) {
  auto const check_name = [](std::string const& given) {
    require(given.find_first_of("\t\n") == std::string::npos,
            text("the name \"", given, "\" holds a tab or a line break"));
  };
  for (Parameter const& parameter : parameters) check_name(parameter.name);
  for (Buffer const& buffer : buffers) check_name(buffer.name);
  std::string lines;
  for (Parameter const& parameter : parameters) lines += line("parameter", parameter.name, parameter.value);
  for (Buffer const& buffer : buffers) lines += line("buffer", buffer.name, buffer.value);

  // Hashes first: the usual case, and small for any model.
  auto const hashes = control.all_gather(text(name, "/hash"), std::to_string(StableHash().add(lines).value()),
                                         group, deadline);
  bool const same =
      std::all_of(hashes.begin(), hashes.end(), [&](auto const& hash) { return hash == hashes[0]; });
  if (same) {
    check_names(parse(lines), control.rank());
    return;
  }
  auto const all = control.all_gather(text(name, "/tensors"), lines, group, deadline);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0]) {
      throw CommError(ErrorCode::mismatch, difference(group[r], parse(all[r]), group[0], parse(all[0])));
    }
  }
}

}  // namespace ddp

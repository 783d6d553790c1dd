#include "parallel/ddp/model_agreement.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "core/hash.hpp"
#include "core/record.hpp"
#include "core/tensor_layout.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

// One tensor as it is compared and shown: a line "parameter\tname\tf32[3,4] on cpu\t[4,1]". Ranks use devices
// of different numbers (cuda:LOCAL_RANK), so a device is the rank's own, or numbered by its first use in the
// model.
template <class Named>
void write_line(char const* what, Named const& tensor, std::vector<Device>& devices, std::ostream& lines) {
  TensorView const& value = tensor.value;
  auto const found = std::find(devices.begin(), devices.end(), value.device);
  auto const ordinal = found - devices.begin();
  if (found == devices.end()) devices.push_back(value.device);
  lines << what << '\t' << tensor.name << '\t' << value.dtype << value.shape << " on "
        << to_string(value.device.kind);
  if (ordinal != 0) lines << " (device " << ordinal + 1 << " of the model)";
  lines << "\t[";
  char const* before = "";
  auto const layout = layout_of(std::string(what) + " \"" + tensor.name + '"', value, tensor.strides);
  for (std::size_t const stride : layout) lines << std::exchange(before, ",") << stride;
  lines << "]\n";
}

// A line for each tensor. `devices`: the rank's own, to which those of the model are added.
std::string write_lines(std::span<Parameter const> parameters, std::span<NamedTensor const> buffers,
                        std::vector<Device>& devices) {
  Classic<std::ostringstream> lines;  // one for all: a model may have thousands of tensors
  for (Parameter const& each : parameters) write_line("parameter", each, devices, lines);
  for (NamedTensor const& each : buffers) write_line("buffer", each, devices, lines);
  return std::move(lines).str();
}

struct Line {
  std::string what;
  std::string name;
  std::string form;
  std::string layout;
};

std::vector<Line> parse(std::string const& lines) {
  std::vector<Line> parsed;
  Classic<std::istringstream> in(lines);
  Line next;
  while (std::getline(in, next.what, '\t') && std::getline(in, next.name, '\t') &&
         std::getline(in, next.form, '\t') && std::getline(in, next.layout)) {
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
    if (a.layout != b.layout) {
      return text("rank ", rank, ": ", show(here, i), " of ", a.form, " has strides ", a.layout, " here, ",
                  b.layout, " on rank ", first,
                  "; elements travel in the order of memory, so it must lie alike on every rank");
    }
  }
  return {};
}

void check_names(std::span<Parameter const> parameters, std::span<NamedTensor const> buffers) {
  std::set<std::string> names;
  auto const check = [&names](std::string const& name) {
    require(!name.empty(), "a parameter or buffer has no name; errors could not tell which");
    require(name.find_first_of("\t\n") == std::string::npos,
            [&] { return text("the name \"", name, "\" holds a tab or a line break"); });
    require(names.insert(name).second, [&] {
      return text("the name \"", name, "\" stands twice; names tell parameters and buffers apart");
    });
  };
  for (Parameter const& each : parameters) check(each.name);
  for (NamedTensor const& each : buffers) check(each.name);
}

}  // namespace

std::string describe_model(Device own, std::span<Parameter const> parameters,
                           std::span<NamedTensor const> buffers) {
  std::vector<Device> devices{own};
  return write_lines(parameters, buffers, devices);
}

std::vector<Device> check_replicas(ControlPlane& control, std::string const& name,
                                   std::span<Rank const> group, Device own,
                                   std::span<Parameter const> parameters,
                                   std::span<NamedTensor const> buffers,
                                   std::function<void()> const& check_here, Deadline deadline) {
  std::vector<Device> devices{own};
  std::string lines;
  std::string problem;
  try {
    check_names(parameters, buffers);
    check_here();
    lines = write_lines(parameters, buffers, devices);
  } catch (Error const& error) {
    problem = error.what();
  }

  // A hash first: the usual case, and small for any model. What this rank finds wrong by itself goes with it.
  auto const words = control.all_gather(text(name, "/hash"),
                                        text(StableHash().add(lines).value(), ' ', problem), group, deadline);
  for (std::size_t r = 0; r < words.size(); ++r) {
    std::string const theirs = words[r].substr(words[r].find(' ') + 1);
    if (!theirs.empty()) throw Error(ErrorCode::invalid_argument, text("rank ", group[r], ": ", theirs));
  }
  if (first_to_differ(words) == 0) {
    // All other devices have a tensor.
    auto const is_own = [own](auto const& tensor) { return tensor.value.device == own; };
    if (std::ranges::none_of(parameters, is_own) && std::ranges::none_of(buffers, is_own)) {
      devices.erase(devices.begin());
    }
    return devices;
  }
  auto const all = control.all_gather(text(name, "/tensors"), lines, group, deadline);
  std::size_t const r = first_to_differ(all);
  if (r == 0) throw CommError(ErrorCode::protocol, "models have different hashes and no difference");
  throw CommError(ErrorCode::mismatch, difference(group[r], parse(all[r]), group[0], parse(all[0])));
}

}  // namespace ddp

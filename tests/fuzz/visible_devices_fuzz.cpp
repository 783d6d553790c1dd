// L1, L2, F14: CUDA_VISIBLE_DEVICES and --gpus. Input: the variable's value, a line end, the list.
#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/core/text.hpp"
#include "fuzz/property.hpp"
#include "launcher/plan/device_list.hpp"
#include "launcher/process/exit_code.hpp"

namespace {

using namespace ddp;
using namespace ddp::launcher;
using fuzz::must;
using Ids = std::vector<GpuId>;

std::vector<PhysicalGpu> const kWhole{{.uuid = {"GPU-27ae3a54-1236-c29e-e3a3-f1d170f18334"}},
                                      {.uuid = {"GPU-0e153505-8466-b46e-c83c-8251dbfbcacd"}},
                                      {.uuid = {"GPU-0e153505-ffff-0000-0000-000000000000"}}};
std::vector<PhysicalGpu> const kSplit{
    {.uuid = {"GPU-27ae3a54-1236-c29e-e3a3-f1d170f18334"},
     .mig = {{{"MIG-41b3aa00-0000-0000-0000-000000000001"}}, {{"MIG-41b3aa00-0000-0000-0000-000000000002"}}},
     .mig_mode = true},
    {.uuid = {"GPU-0e153505-8466-b46e-c83c-8251dbfbcacd"}}};

bool distinct(Ids const& ids) { return std::set<GpuId>(ids.begin(), ids.end()).size() == ids.size(); }

bool exist(Ids const& visible, std::span<PhysicalGpu const> gpus) {
  return std::ranges::all_of(visible, [&](GpuId const& id) { return find_gpu(gpus, id).has_value(); });
}

void select(std::string_view list, Ids const& visible, std::optional<std::string> const& inherited) {
  Ids chosen;
  try {
    chosen = select_gpus(list, visible, inherited);
  } catch (ExitError const& error) {
    must(error.exit_code() == exit_code::kUsage || error.exit_code() == exit_code::kNoDevice,
         "a bad list ends with 64 or 69");
    must(std::string_view(error.what()).starts_with(text("--gpus ", list)), "the message names the list");
    return;
  }
  must(!chosen.empty(), "an accepted list starts a rank");
  must(distinct(chosen), "no device is chosen twice");
  must(std::ranges::all_of(chosen,
                           [&](auto const& id) { return std::ranges::find(visible, id) != visible.end(); }),
       "only visible devices are chosen");
  must(select_gpus(join(chosen, ","), visible, inherited) == chosen,
       "a list of what was chosen chooses it again");
}

void read(std::optional<std::string> const& value, std::string_view list, std::span<PhysicalGpu const> gpus) {
  Ids const visible = read_cuda_visible_devices(value, gpus);
  must(distinct(visible), "no device is visible twice");
  must(exist(visible, gpus), "what is visible exists");
  // What the launcher exports to its ranks.
  if (!visible.empty()) {
    must(read_cuda_visible_devices(join(visible, ","), gpus) == visible, "ranks see what the launcher saw");
  }
  if (value) {
    if (auto const odd = oddity(*value, visible.size())) {
      must(odd->find(*value) != std::string::npos, "the warning names the value");
    }
  }
  select(list, visible, value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const input = fuzz::as_text(data, size);
  std::string_view const line = input.substr(0, input.find('\n'));
  std::string_view const rest = input.substr(std::min(line.size() + 1, input.size()));
  // Neither a variable nor an argument holds a zero byte.
  std::string const value(line.substr(0, line.find('\0')));
  std::string_view const list = rest.substr(0, rest.find('\0'));
  for (auto const& gpus : {std::span(kWhole), std::span(kSplit), std::span(kWhole).first(0)}) {
    read(value, list, gpus);
    read(std::nullopt, list, gpus);
  }
  return 0;
}

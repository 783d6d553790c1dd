#include "launcher/mpirun/mpirun_settings.hpp"

#include <algorithm>
#include <string_view>

#include "ddp/core/text.hpp"
#include "launcher/mpirun/mpi_plan.hpp"
#include "launcher/mpirun/mpi_shim.hpp"

namespace ddp::launcher {
namespace {

constexpr char const* kTransports = "OMPI_MCA_btl";  // two of them listen, on every interface
constexpr char const* kPreload = "LD_PRELOAD";

}  // namespace

bool are_all_here(std::span<Host const> hosts, std::string const& here) {
  return !hosts.empty() && std::ranges::all_of(hosts, [&](Host const& host) {
    return host.name == "localhost" || host.name == "127.0.0.1" || host.name == here;
  });
}

Variables mpirun_settings(std::span<std::string const> environment, std::string const& files) {
  Variables settings;
  // mpirun takes one word only on where its files are.
  if (!value_of("OMPI_MCA_orte_tmpdir_base", environment) && !value_of(kMpirunFiles, environment)) {
    settings.emplace_back(kMpirunFiles, files);
  }
  return settings;
}

Variables loopback_settings(std::span<std::string const> environment, std::string const& library) {
  Variables settings;
  if (!value_of(kTransports, environment)) settings.emplace_back(kTransports, "^tcp,ofi");
  if (!library.empty()) {
    auto const own = value_of(kPreload, environment);
    settings.emplace_back(kPreload, own && !own->empty() ? text(library, ":", *own) : library);
  }
  return settings;
}

std::string users_preload(std::string const& preload) {
  std::size_t const end = preload.find(':');
  if (!std::string_view(preload).substr(0, end).ends_with(kLoopbackLibrary)) return preload;
  return end == std::string::npos ? std::string() : preload.substr(end + 1);
}

}  // namespace ddp::launcher

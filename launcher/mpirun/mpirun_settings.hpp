// What Open MPI is told through its environment.
#pragma once

#include <span>
#include <string>

#include "launcher/options/hosts.hpp"
#include "launcher/plan/plan.hpp"

namespace ddp::launcher {

/// Whether these hosts are no other than this one, called `here`.
[[nodiscard]] bool are_all_here(std::span<Host const> hosts, std::string const& here);

/// Variables for mpirun and its ranks, less what `environment` ("NAME=value" each) says itself. `files`:
/// where mpirun keeps its own.
[[nodiscard]] Variables mpirun_settings(std::span<std::string const> environment, std::string const& files);

/// More of them, for a job that needs no network: then nothing listens on another interface than the loopback
/// one. `library`: the path of kLoopbackLibrary; empty for none.
[[nodiscard]] Variables loopback_settings(std::span<std::string const> environment,
                                          std::string const& library);

/// The library that keeps mpirun's own sockets to the loopback interface, loopback_bind.cpp.
inline constexpr char const* kLoopbackLibrary = "ddp_loopback.so";

/// LD_PRELOAD without that library; empty if nothing is left.
[[nodiscard]] std::string users_preload(std::string const& preload);

}  // namespace ddp::launcher

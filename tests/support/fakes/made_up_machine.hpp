// Machines for --check that are not there.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "launcher/check/machine_check.hpp"

namespace ddp::launcher {

inline constexpr Verdict kOk = Verdict::ok;
inline constexpr Verdict kWarning = Verdict::warning;
inline constexpr Verdict kFailed = Verdict::failed;

inline PhysicalGpu gpu(int index, std::size_t free_gib = 80, std::vector<pid_t> processes = {}) {
  return {.uuid = {"GPU-" + std::string(8, static_cast<char>('a' + index)) + "-0000-0000-0000-000000000000"},
          .name = "NVIDIA H100",
          .index = PhysicalIndex{index},
          .pci_bus_id = "0000:1a:00.0",
          .compute_major = 9,
          .memory = MemoryInfo{free_gib * 1_GiB, 80_GiB},
          .compute_processes = std::move(processes)};
}

/// Reaches all its peers over NVLink.
inline Machine machine_with(std::vector<PhysicalGpu> gpus) {
  Machine machine;
  machine.host = "node7";
  machine.allowed_cores = 16;
  machine.physical_cores = 2;
  machine.driver_version = "580.82.07";
  machine.cuda_version = "13.0";
  machine.gpus = std::move(gpus);
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    machine.peers.emplace_back(machine.gpus.size(), PeerAccess::nvlink)[i] = PeerAccess::itself;
  }
  return machine;
}

inline MachineFacts good_facts() {
  MachineFacts facts;
  facts.shared_memory = ShmFilesystem{16_GiB, 16_GiB, true};
  facts.open_files = 1024;
  facts.most_open_files = 1048576;
  facts.kernel = "6.1.0";
  facts.nccl = {"2.28.3", "/usr/lib/libnccl.so.2", ""};
  facts.mpi = {"Open MPI 4.1.4", "/usr/lib/libmpi.so.40", ""};
  facts.mpirun = {"mpirun (Open MPI) 4.1.4", "/usr/bin/mpirun", ""};
  facts.built_with = {"13.0.88", "2.28.3", "Open MPI 4.1.4"};
  return facts;
}

inline Options options_of(std::vector<std::string> words) {
  words.insert(words.begin(), "--check");
  return parse_options(words);
}

inline std::vector<Check> checks_of(std::vector<std::string> const& words, Machine const& machine,
                                    MachineFacts const& facts = good_facts()) {
  return check_machine(options_of(words), machine, facts);
}

inline Check named(std::vector<Check> const& checks, std::string const& name) {
  for (Check const& check : checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "there is no check " << name;
  return {};
}

inline std::vector<std::string> names_of(std::vector<Check> const& checks) {
  std::vector<std::string> names;
  for (Check const& check : checks) names.push_back(check.name);
  return names;
}

/// What every check owes its reader.
inline void expect_whole(std::vector<Check> const& checks) {
  for (Check const& check : checks) {
    EXPECT_FALSE(check.found.empty()) << check.name;
    EXPECT_EQ(check.verdict == kOk, check.expected.empty()) << check.name;
    EXPECT_EQ(check.verdict == kOk, check.advice.empty()) << check.name;
  }
}

inline CheckedJob const kTwoGpus{{{"GPU-a"}, {"GPU-b"}}, 2, true};
inline CheckedJob const kTwoCpus{{}, 2, false};

}  // namespace ddp::launcher

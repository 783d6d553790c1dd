// L12: what --check prints.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "launcher/check/check_report.hpp"
#include "support/fakes/made_up_machine.hpp"

namespace ddp::launcher {
namespace {

TEST(CheckReport, TheReportIsALineForEachCheck) {
  std::vector<Check> const checks{{.name = "/dev/shm", .found = "1 GiB"},
                                  {.name = "NCCL",
                                   .verdict = kWarning,
                                   .found = "none",
                                   .expected = "2.18 or newer",
                                   .advice = "install it",
                                   .details = {"x y"}},
                                  {.name = "GPU 0", .verdict = kFailed, .found = "full", .expected = "room"}};
  EXPECT_EQ(check_text(checks),
            "OK       /dev/shm  1 GiB\n"
            "WARNING  NCCL      none; expected 2.18 or newer. To do: install it\n"
            "                   x y\n"
            "FAILED   GPU 0     full; expected room\n"
            "1 ok, 1 warning, 1 failed\n");
}

TEST(CheckReport, TheReportAsJsonHasAllChecksAndAllGpus) {
  Machine machine = machine_with({gpu(0, 79, {4711}), gpu(1)});
  machine.gpu_nodes[machine.gpus[1].index] = 1;
  machine.peers[1][0] = PeerAccess::direct;
  auto const checks = checks_of({"--gpus", "1"}, machine);
  auto const json = nlohmann::json::parse(check_json(checks, machine));
  EXPECT_EQ(json["host"], "node7");
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_EQ(json["ok"], checks.size());
  EXPECT_EQ(json["failed"], 0);
  ASSERT_EQ(json["checks"].size(), checks.size());
  EXPECT_EQ(json["checks"][0]["name"], "driver");
  EXPECT_EQ(json["checks"][0]["verdict"], "OK");
  EXPECT_EQ(json["checks"][0]["found"], "580.82.07");
  ASSERT_EQ(json["gpus"].size(), 2U) << "also those that the job does not use";
  EXPECT_EQ(json["gpus"][0]["processes"], nlohmann::json({4711}));
  EXPECT_EQ(json["gpus"][0]["memory"]["free"], (79_GiB).value);
  EXPECT_EQ(json["gpus"][0]["numa_node"], nullptr);
  EXPECT_EQ(json["gpus"][1]["numa_node"], 1);
  EXPECT_EQ(json["gpus"][1]["compute_capability"], nlohmann::json({9, 0}));
  EXPECT_EQ(json["peer_access"][0], nlohmann::json({"itself", "nvlink"}));
  EXPECT_EQ(json["peer_access"][1], nlohmann::json({"pcie", "itself"}));
  machine.driver_version = "\xff";
  EXPECT_FALSE(nlohmann::json::parse(check_json(checks, machine)).empty()) << "words that are no UTF-8";
}

}  // namespace
}  // namespace ddp::launcher

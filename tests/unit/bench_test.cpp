// The parts of ddp-bench that can be wrong without anybody noticing: sizes, statistics, options, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "ddp/core/error.hpp"
#include "options.hpp"
#include "report.hpp"
#include "size_text.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SizeText, ReadsBytesAndBinaryUnits) {
  EXPECT_EQ(parse_bytes("0").value, 0U);
  EXPECT_EQ(parse_bytes("1024").value, 1024U);
  EXPECT_EQ(parse_bytes("17 B").value, 17U);
  EXPECT_EQ(parse_bytes("1KiB").value, 1024U);
  EXPECT_EQ(parse_bytes("64 MiB").value, 64U << 20);
  EXPECT_EQ(parse_bytes("3GiB").value, std::size_t{3} << 30);
}

TEST(SizeText, RefusesWhatCouldBeReadInTwoWays) {
  for (char const* const wrong : {"", "KiB", "-1", "+1", " 1", "1.5KiB", "64MB", "64M", "1kib", "1  KiB",
                                  "1KiB ", "99999999999999999999", "17179869184GiB", "0x10"}) {
    EXPECT_THROW(static_cast<void>(parse_bytes(wrong)), Error) << '"' << wrong << '"';
  }
}

TEST(Statistics, TheMedianIsTheMiddleValue) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({4, 1, 3, 100}), 3.5);
  EXPECT_THROW(static_cast<void>(median({})), Error);
}

TEST(Statistics, TheSlowestRankCountsInEachRound) {
  EXPECT_THAT(slowest({{1, 5, 3}, {2, 4, 3}}), ElementsAre(2, 5, 3));
  EXPECT_THROW(static_cast<void>(slowest({{1, 5}, {2}})), Error);
  EXPECT_THROW(static_cast<void>(slowest({})), Error);
}

TEST(BenchOptions, TheDefaultSweepsFrom1KiBTo256MiB) {
  auto const options = std::get<AllReduceOptions>(parse_options({"all-reduce"}));
  auto const sizes = sweep(options);
  EXPECT_EQ(sizes.front(), 1_KiB);
  EXPECT_EQ(sizes.back(), 256_MiB);
  EXPECT_EQ(sizes.size(), 10U);
}

TEST(BenchOptions, TheSweepEndsAtTheMaximumEvenIfNoStepFallsOnIt) {
  auto const options = std::get<AllReduceOptions>(
      parse_options({"all-reduce", "--min", "1KiB", "--max=9KiB", "--factor", "2", "--rounds", "5"}));
  EXPECT_THAT(sweep(options), ElementsAre(1_KiB, 2_KiB, 4_KiB, 8_KiB, 9_KiB));
  EXPECT_THAT(sweep({.min = 4_B, .max = 4_B, .json = ""}), ElementsAre(4_B));
}

TEST(BenchOptions, WhatCannotBeMeasuredIsRefused) {
  std::vector<std::vector<std::string>> const wrong{{},
                                                    {"all-reduce", "--min", "2KiB", "--max", "1KiB"},
                                                    {"all-reduce", "--min", "0"},
                                                    {"all-reduce", "--max", "1027"},
                                                    {"all-reduce", "--max", "64MB"},
                                                    {"all-reduce", "--factor", "1"},
                                                    {"all-reduce", "--rounds", "4"},
                                                    {"all-reduce", "--rounds", "-7"},
                                                    {"all-reduce", "--jso", "x"},
                                                    {"all-reduce", "--json"},
                                                    {"all-reduce", "surplus"},
                                                    {"reducer", "--parameters", "0"},
                                                    {"reducer", "--steps", "1"},
                                                    {"reducer", "--min", "1KiB"},
                                                    {"merge-traces"},
                                                    {"merge-traces", "a", "b"},
                                                    {"all_reduce"}};
  for (auto const& arguments : wrong) {
    EXPECT_THROW(static_cast<void>(parse_options(arguments)), Error) << ::testing::PrintToString(arguments);
  }
}

TEST(BenchOptions, MergedTracesLieBesideThemUnlessAskedFor) {
  auto const beside = std::get<MergeTracesOptions>(parse_options({"merge-traces", "traces"}));
  EXPECT_EQ(beside.folder, "traces");
  EXPECT_EQ(beside.output, "traces/merged.json");
  auto const asked = std::get<MergeTracesOptions>(parse_options({"merge-traces", "--output=x", "traces"}));
  EXPECT_EQ(asked.output, "x");
}

TEST(BenchOptions, HelpIsNoMeasurement) {
  for (std::vector<std::string> const& arguments :
       {std::vector<std::string>{"--help"}, {"all-reduce", "--help"}, {"reducer", "-h"}}) {
    auto const options = parse_options(arguments);
    ASSERT_TRUE(std::holds_alternative<Help>(options));
    EXPECT_THAT(std::get<Help>(options).text, HasSubstr("ddp-bench"));
  }
}

TEST(BenchReport, RatiosAndBandwidthFollowTheirDefinitions) {
  AllReduceRow row{.bytes = 64_MiB, .us = 8000, .raw_us = 4000, .memcpy_us = 10000};
  EXPECT_EQ(row.ratio(), 2.0);
  EXPECT_EQ(row.memcpy_ratio(), 0.8);
  EXPECT_DOUBLE_EQ(row.algorithm_gb_s(), 8.388608);
  EXPECT_DOUBLE_EQ(row.bus_gb_s(1), 0);
  EXPECT_DOUBLE_EQ(row.bus_gb_s(2), 8.388608);
  EXPECT_DOUBLE_EQ(row.bus_gb_s(4), 8.388608 * 1.5);
}

TEST(BenchReport, AllReduceJsonSaysNullWhereThereIsNoPlainLibrary) {
  Circumstances const where{"shm", 2, "a machine", "2026-01-02T03:04:05Z"};
  std::vector<AllReduceRow> const rows{{.bytes = 1_KiB, .us = 2, .raw_us = {}, .memcpy_us = 1}};
  auto const report = nlohmann::json::parse(to_json(where, rows));
  EXPECT_EQ(report, nlohmann::json::parse(R"({"backend": "shm", "ranks": 2, "hardware": "a machine",
      "date": "2026-01-02T03:04:05Z",
      "rows": [{"bytes": 1024, "us": 2.0, "raw_us": null, "ratio": null, "memcpy_us": 1.0,
                "memcpy_ratio": 2.0, "bus_gb_s": 0.512}]})"));
}

TEST(BenchReport, CircumstancesNameTheMachineAndTheTime) {
  Circumstances const where = circumstances("shm", 2);
  EXPECT_THAT(where.hardware, HasSubstr("CPUs"));
  EXPECT_THAT(where.date, ::testing::MatchesRegex("20[0-9-]+T[0-9:]+Z"));
}

TEST(BenchReport, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(check_writable("/nonexistent-folder/results.json"), Error);
}

}  // namespace
}  // namespace ddp::bench

// The parts of ddp-bench that can be wrong without anybody noticing: sizes, statistics, options, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "ddp/core/error.hpp"
#include "gemm.hpp"
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
  EXPECT_EQ(parse_bytes("64 MiB"), 64_MiB);
  EXPECT_EQ(parse_bytes("3GiB"), 3_GiB);
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

TEST(BenchOptions, TheDefaultSweepsFrom1KiBTo256MiBOrOnGpusTo1GiB) {
  auto const options = std::get<AllReduceOptions>(parse_options({"all-reduce"}));
  auto const sizes = sweep(options, DeviceKind::cpu);
  EXPECT_EQ(sizes.front(), 1_KiB);
  EXPECT_EQ(sizes.back(), 256_MiB);
  EXPECT_EQ(sizes.size(), 10U);
  EXPECT_EQ(sweep(options, DeviceKind::cuda).back(), 1_GiB);
}

TEST(BenchOptions, TheSweepEndsAtTheMaximumEvenIfNoStepFallsOnIt) {
  auto const options = std::get<AllReduceOptions>(
      parse_options({"all-reduce", "--min", "1KiB", "--max=9KiB", "--factor", "2", "--rounds", "5"}));
  EXPECT_THAT(sweep(options, DeviceKind::cpu), ElementsAre(1_KiB, 2_KiB, 4_KiB, 8_KiB, 9_KiB));
  EXPECT_THAT(sweep({.min = 4_B, .max = 4_B, .json = ""}, DeviceKind::cuda), ElementsAre(4_B));
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
                                                    {"all-reduce", "--min", "512MiB"},
                                                    {"overlap", "--layers", "1"},
                                                    {"overlap", "--width", "0"},
                                                    {"overlap", "--rows", "0"},
                                                    {"overlap", "--dtype", "f16"},
                                                    {"overlap", "--bucket", "0"},
                                                    {"overlap", "--rounds", "4"},
                                                    {"overlap", "--comm-sms", "-1"},
                                                    {"overlap", "surplus"},
                                                    {"data-parallel", "--layers", "0"},
                                                    {"data-parallel", "--cpus", "0"},
                                                    {"data-parallel", "--rounds", "4"},
                                                    {"data-parallel", "surplus"},
                                                    {"merge-traces"},
                                                    {"merge-traces", "a", "b"},
                                                    {"all_reduce"}};
  for (auto const& arguments : wrong) {
    EXPECT_THROW(static_cast<void>(parse_options(arguments)), Error) << ::testing::PrintToString(arguments);
  }
}

TEST(BenchOptions, OverlapChoosesWhatIsNotGiven) {
  auto const chosen = std::get<OverlapOptions>(parse_options({"overlap"}));
  EXPECT_EQ(chosen.layers, 24U);
  EXPECT_FALSE(chosen.rows || chosen.width || chosen.bucket);
  EXPECT_EQ(chosen.comm_sms, 16);
  auto const given =
      std::get<OverlapOptions>(parse_options({"overlap", "--quick", "--width", "9", "--rows", "7", "--dtype",
                                              "bf16", "--bucket", "1MiB", "--comm-sms", "0"}));
  EXPECT_EQ(given.comm_sms, 0);
  EXPECT_EQ(given.layers, 16U);
  EXPECT_EQ(given.rounds, 5U);
  EXPECT_EQ(given.width, 9U);
  EXPECT_EQ(given.rows, 7U);
  EXPECT_EQ(given.dtype, DType::bf16);
  EXPECT_EQ(given.bucket, 1_MiB);
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
       {std::vector<std::string>{"--help"}, {"all-reduce", "--help"}, {"reducer", "-h"}, {"overlap", "-h"}}) {
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
      "rows": [{"bytes": 1024, "us": 2.0, "raw_us": null, "in_rank_order_us": null, "ratio": null,
                "host_us": null, "raw_host_us": null, "memcpy_us": 1.0, "memcpy_ratio": 2.0, "bus_gb_s": 0.512}]})"));
}

TEST(BenchReport, AllReduceJsonOfGpusHasTheHostsTimesAndTheGpu) {
  Circumstances const where{"nccl", 8, "a machine", "2026-01-02T03:04:05Z", "a GPU", "1 MHz"};
  std::vector<AllReduceRow> const rows{
      {.bytes = 1_KiB, .us = 3, .raw_us = 2, .in_rank_order_us = 7, .host_us = 5, .raw_host_us = 4}};
  auto const report = nlohmann::json::parse(to_json(where, rows));
  EXPECT_EQ(report.at("gpu"), "a GPU");
  EXPECT_EQ(report.at("gpu_clocks"), "1 MHz");
  auto const& row = report.at("rows").at(0);
  EXPECT_EQ(row.at("ratio"), 1.5);
  EXPECT_EQ(row.at("in_rank_order_us"), 7);
  EXPECT_EQ(row.at("host_us"), 5);
  EXPECT_EQ(row.at("raw_host_us"), 4);
  EXPECT_TRUE(row.at("memcpy_us").is_null());
}

TEST(BenchReport, TheComparisonTakesTheWorstRowOfEachKind) {
  std::vector<AllReduceRow> const rows{
      {.bytes = 1_KiB, .us = 10.5, .raw_us = 10, .host_us = 5, .raw_host_us = 4.8},
      {.bytes = 64_KiB, .us = 20.2, .raw_us = 20, .host_us = 5, .raw_host_us = 4.1},
      {.bytes = 1_MiB, .us = 50, .raw_us = 40},
      {.bytes = 64_MiB, .us = 400, .raw_us = 320},
      {.bytes = 1_GiB, .us = 1000, .raw_us = 500}};
  std::ostringstream out;
  print_comparison(out, rows);
  EXPECT_EQ(out.str(),
            "of the plain library's bandwidth at least 0.500, from 64 MiB 0.500; up to 64 KiB at most 0.50 "
            "us added, "
            "0.90 us of the host's time\n");
  std::ostringstream none;
  print_comparison(none, {{.bytes = 1_KiB, .us = 2, .memcpy_us = 1}});
  EXPECT_EQ(none.str(), "");
}

TEST(BenchReport, OverlapIsComparedWithTheLongerAndWithTheSum) {
  OverlapResult const result{.layers = 24,
                             .width = 4096,
                             .rows = 2048,
                             .dtype = DType::bf16,
                             .gradients = 1_GiB,
                             .buckets = 41,
                             .comm_sms = 16,
                             .compute_sms = 116,
                             .compute_ms = 8,
                             .communication_ms = 10,
                             .overlapped_ms = 11,
                             .one_by_one_ms = 18};
  std::ostringstream out;
  print(out, result, 8);
  for (char const* const part :
       {"24 layers of 4096 x 4096 bf16, 2048 rows; 1 GiB of gradients in 41 buckets",
        "16 set aside for messages, 116 for overlapped products", "8.000 ms", "10.000 ms",
        "11.000 ms   1.100 x the longer", "18.000 ms   1.000 x their sum"}) {
    EXPECT_THAT(out.str(), HasSubstr(part));
  }
  auto const row = nlohmann::json::parse(to_json({"nccl", 8, "", ""}, result)).at("rows").at(0);
  EXPECT_EQ(row.at("dtype"), "bf16");
  EXPECT_EQ(row.at("comm_sms"), 16);
  EXPECT_EQ(row.at("overlapped_over_longer"), 1.1);
  EXPECT_EQ(row.at("one_by_one_over_sum"), 1.0);
}

// The same products by the definition, of shapes that show a dimension mixed up.
TEST(Gemm, AnyOfTheTwoMayBeStoredTransposed) {
  constexpr std::size_t kM = 3;
  constexpr std::size_t kN = 5;
  constexpr std::size_t kK = 4;
  auto const stream = HostStream::inline_stream();
  auto const gemm = make_gemm(Device{}, DType::f32);
  auto const value = [](std::size_t i, std::size_t j, int which) {
    return static_cast<float>(static_cast<int>(i * 7 + j * 3) % 11 - which);
  };
  for (auto const transposed : {Gemm::Transposed::none, Gemm::Transposed::first, Gemm::Transposed::second}) {
    // Element (i, j) of a matrix, wherever it is stored.
    auto const filled = [&](std::size_t rows, std::size_t columns, bool turned, int which) {
      Tensor const matrix = Tensor::zeros(turned ? Shape{columns, rows} : Shape{rows, columns}, DType::f32);
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < columns; ++j) {
          matrix.as<float>()[turned ? j * rows + i : i * columns + j] = value(i, j, which);
        }
      }
      return matrix;
    };
    Tensor const a = filled(kM, kK, transposed == Gemm::Transposed::first, 1);
    Tensor const b = filled(kK, kN, transposed == Gemm::Transposed::second, 2);
    Tensor const out = Tensor::zeros(Shape{kM, kN}, DType::f32);
    gemm->multiply(transposed, a, b, out, *stream);
    for (std::size_t i = 0; i < kM; ++i) {
      for (std::size_t j = 0; j < kN; ++j) {
        float expected = 0;
        for (std::size_t k = 0; k < kK; ++k) expected += value(i, k, 1) * value(k, j, 2);
        EXPECT_EQ(out.as<float>()[i * kN + j], expected) << i << ", " << j;
      }
    }
  }
  EXPECT_THROW(static_cast<void>(make_gemm(Device{}, DType::bf16)), Error);
}

TEST(BenchReport, CircumstancesNameTheMachineAndTheTime) {
  Circumstances const where = circumstances("shm", 2, Device{});
  EXPECT_THAT(where.hardware, HasSubstr("CPUs"));
  EXPECT_THAT(where.date, ::testing::MatchesRegex("20[0-9-]+T[0-9:]+Z"));
}

TEST(BenchReport, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(check_writable("/nonexistent-folder/results.json"), Error);
}

}  // namespace
}  // namespace ddp::bench

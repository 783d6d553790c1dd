// The format's rules, from both sides.
#include "checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/core/text.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;

std::string parse_message(std::string const& json, std::size_t bytes) {
  return message_of([&] { static_cast<void>(parse_safetensors_header(json, bytes)); });
}

TEST(Safetensors, AHeaderIsItsLengthInLittleEndianAndJsonFilledUpWithSpaces) {
  std::vector<SafetensorsEntry> const entries{{"w", DType::f32, Shape{2, 3}, 0, 24}};
  std::string const bytes = safetensors_header(entries, {});
  EXPECT_EQ(bytes.size() % 8, 0U);
  EXPECT_EQ(safetensors_header_length(bytes), bytes.size() - 8);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]), bytes.size() - 8);
  EXPECT_THAT(bytes.substr(8),
              ::testing::StartsWith(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})"));
}

TEST(Safetensors, WhatIsWrittenIsReadInTheOrderOfItsBytes) {
  std::vector<SafetensorsEntry> const entries{{"z", DType::f64, Shape{}, 0, 8},
                                              {"a", DType::bf16, Shape{0, 5}, 8, 8},
                                              {"m", DType::i64, Shape{2}, 8, 24},
                                              {"ü", DType::u8, Shape{1}, 24, 25}};
  std::string const bytes = safetensors_header(entries, {{"step", "7"}});
  auto const found = parse_safetensors_header(bytes.substr(8), 25);
  ASSERT_EQ(found.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[i].name, entries[i].name);
    EXPECT_EQ(found[i].dtype, entries[i].dtype);
    EXPECT_EQ(found[i].shape, entries[i].shape);
    EXPECT_EQ(found[i].begin, entries[i].begin);
  }
}

TEST(Safetensors, EveryDtypeIsWrittenUnderItsNameAndReadAgain) {
  std::vector<std::string> const names{"F64", "F32", "F16", "BF16", "I32", "I64", "U8", "I8", "I16", "BOOL"};
  ASSERT_EQ(names.size(), kDTypeCount);
  for (std::size_t d = 0; d < kDTypeCount; ++d) {
    auto const dtype = static_cast<DType>(d);
    std::size_t const bytes = 3 * size_of(dtype);
    std::vector<SafetensorsEntry> const entries{{"w", dtype, Shape{3}, 0, bytes}};
    std::string const header = safetensors_header(entries, {});
    EXPECT_THAT(header, HasSubstr(text(R"("dtype":")", names[d], R"(")")));
    auto const found = parse_safetensors_header(header.substr(8), bytes);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].dtype, dtype);
  }
}

TEST(Safetensors, EightBitFloatsAreRefusedByName) {
  for (char const* dtype : {"F8_E4M3", "F8_E5M2"}) {
    std::string const json = text(R"({"w":{"dtype":")", dtype, R"(","shape":[4],"data_offsets":[0,4]}})");
    auto const error = error_of([&] { static_cast<void>(parse_safetensors_header(json, 4)); });
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr(text("tensor \"w\" has the dtype ", dtype,
                                             ", an 8-bit float: not supported; convert it to")));
  }
}

TEST(Safetensors, NamesThatTheFormatCannotHoldAreRefused) {
  auto const header = [](std::string const& one, std::string const& two) {
    std::vector<SafetensorsEntry> const entries{{one, DType::u8, Shape{1}, 0, 1},
                                                {two, DType::u8, Shape{1}, 1, 2}};
    return message_of([&] { static_cast<void>(safetensors_header(entries, {})); });
  };
  EXPECT_THAT(header("a", "__metadata__"), HasSubstr("reserved"));
  EXPECT_THAT(header("a", "a"), HasSubstr("there twice"));
  EXPECT_THAT(header("a", ""), HasSubstr("empty"));
  EXPECT_THAT(header("a", "\xff"), HasSubstr("must be UTF-8"));
}

TEST(Safetensors, F17DamagedHeadersAreRefusedWithWhatIsWrong) {
  EXPECT_THAT(parse_message("{", 0), HasSubstr("no safetensors file"));
  EXPECT_THAT(parse_message("[]", 4), HasSubstr("no safetensors file"));
  EXPECT_THAT(parse_message(R"({"w":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}})", 4),
              HasSubstr("the dtype Q7, unknown"));
  EXPECT_THAT(parse_message(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("f32[2], 8 B, from 0 to 4"));
  EXPECT_THAT(parse_message(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8),
              HasSubstr("begins at 4, not at 0"));
  EXPECT_THAT(parse_message(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5),
              HasSubstr("take 4 B, there are 5"));
  EXPECT_THAT(parse_message(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4),
              HasSubstr("no safetensors file"));
  EXPECT_THAT(
      parse_message(R"({"w":{"dtype":"F32","shape":[4611686018427387904,16],"data_offsets":[0,0]}})", 0),
      HasSubstr("no safetensors file"));
  for (char const* number : {"-1", "1.5", "1e300", "true", "\"1\"", "[1]"}) {
    std::string const shape = text(R"({"w":{"dtype":"U8","shape":[)", number, R"(],"data_offsets":[0,1]}})");
    EXPECT_THAT(parse_message(shape, 1), HasSubstr(text("\"shape\" to be a whole number from 0 to")))
        << number;
    std::string const offset = text(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,)", number, "]}}");
    EXPECT_THAT(parse_message(offset, 1), HasSubstr("\"data_offsets\" to be a whole number from 0 to"))
        << number;
  }
  EXPECT_THAT(parse_message(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1),
              HasSubstr("3 data_offsets, not 2"));
  EXPECT_THAT(parse_message(std::string(1'000'000, '['), 0), HasSubstr("nested deeper than 32 levels"));
  EXPECT_THAT(message_of([] { static_cast<void>(safetensors_header_length("1234567")); }),
              HasSubstr("ends within"));
  EXPECT_THAT(
      message_of([] { static_cast<void>(safetensors_header_length("\xff\xff\xff\xff\xff\xff\xff\xff")); }),
      HasSubstr("at most"));
}

}  // namespace
}  // namespace ddp::testing

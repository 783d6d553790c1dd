// F17: what a manifest must not say even where its checksum holds. Most of it was found by
// tests/fuzz/checkpoint_manifest_fuzz.cpp.
#include "checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/sha256.hpp"
#include "support/errors.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

std::string const kSha(64, '0');

Json record(std::string const& name, Json const& bytes = 8) {
  return {{"name", name}, {"bytes", bytes}, {"sha256", kSha}};
}

Json good() {
  return {{"format", "ddp checkpoint"},
          {"version", 1},
          {"number", 7},
          {"ranks", 2},
          {"step", 120},
          {"epoch", 1},
          {"samples", 640},
          {"metadata", {{"rate", "0.1"}}},
          {"files", Json::array({record("model.safetensors")})}};
}

std::string with_checksum(Json body) {
  body["manifest_sha256"] = Sha256::of(body.dump());
  return body.dump();
}

std::string refusal_of(std::string const& json) {
  auto const error = error_of([&] { static_cast<void>(parse_manifest(json)); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  return error.what();
}

std::string refusal_with(char const* member, Json const& value) {
  Json body = good();
  body[member] = value;
  return refusal_of(with_checksum(body));
}

TEST(CheckpointManifest, WhatIsWrittenIsRead) {
  CheckpointManifest const manifest = parse_manifest(with_checksum(good()));
  EXPECT_EQ(manifest.ranks, 2);
  EXPECT_EQ(manifest.position.step, 120U);
  EXPECT_EQ(to_json(parse_manifest(to_json(manifest))), to_json(manifest));
}

TEST(CheckpointManifest, F17ADeeplyNestedOneIsRefusedAndDoesNotExhaustTheStack) {
  constexpr int kDepth = 1'000'000;
  std::string const deep = R"({"format":"ddp checkpoint","version":1,"manifest_sha256":"","a":)" +
                           std::string(kDepth, '[') + std::string(kDepth, ']') + "}";
  EXPECT_THAT(refusal_of(deep),
              AllOf(StartsWith("manifest.json"), HasSubstr("nested deeper than 32 levels")));
}

TEST(CheckpointManifest, F17BracketsInsideOfStringsAreNoNesting) {
  std::string const note = std::string(100, '[') + "\"\\" + std::string(100, '{');
  Json body = good();
  body["metadata"]["note"] = note;
  EXPECT_EQ(parse_manifest(with_checksum(body)).position.metadata.at("note"), note);
}

TEST(CheckpointManifest, F17NumbersThatAreNoWholeNumbersAreRefused) {
  for (Json const& number : std::vector<Json>{-1, 1.5, 1e300, true, "1", nullptr}) {
    for (char const* member : {"number", "step", "epoch", "samples", "ranks"}) {
      EXPECT_THAT(refusal_with(member, number), HasSubstr(std::string(member) + "\" to be a whole number"));
    }
    EXPECT_THAT(refusal_with("files", Json::array({record("a", number)})),
                HasSubstr("\"bytes\" to be a whole number"));
  }
  EXPECT_THAT(refusal_with("ranks", 2147483648U), HasSubstr("a whole number from 0 to 2147483647"));
  EXPECT_THAT(refusal_with("ranks", 0), HasSubstr("of 0 ranks"));
}

TEST(CheckpointManifest, F17FilesOutsideOfItsFolderAndFilesThatStandTwiceAreRefused) {
  for (std::string const& name :
       {std::string("../model.safetensors"), std::string("/dev/zero"), std::string("a/b"), std::string(".."),
        std::string("."), std::string(), std::string("a\0b", 3)}) {
    EXPECT_THAT(refusal_with("files", Json::array({record(name)})),
                HasSubstr("does not lie in the checkpoint's folder"));
  }
  EXPECT_THAT(refusal_with("files", Json::array({record("a"), record("a", 9)})),
              HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(refusal_with("files", Json::array({{{"name", "a"}, {"bytes", 1}, {"sha256", "00"}}})),
              HasSubstr("no SHA-256"));
}

}  // namespace
}  // namespace ddp::testing

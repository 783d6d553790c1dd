// IDX files, whole and damaged in every way that an incomplete or wrong download can be.
#include "data/idx.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/loader.hpp"

namespace data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Bytes = std::string;

Bytes word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

Bytes image_bytes(std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
  Bytes file = word(0x803) + word(count) + word(rows) + word(columns);
  for (std::uint32_t i = 0; i < count * rows * columns; ++i) file += static_cast<char>(i % 251);
  return file;
}

Bytes label_bytes(std::uint32_t count) {
  Bytes file = word(0x801) + word(count);
  for (std::uint32_t i = 0; i < count; ++i) file += static_cast<char>(i % 10);
  return file;
}

Bytes compressed(Bytes const& content) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::vector<unsigned char> in(content.begin(), content.end());
  std::vector<unsigned char> out(deflateBound(&stream, static_cast<uLong>(in.size())));
  stream.next_in = in.data();
  stream.avail_in = static_cast<unsigned>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<unsigned>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  Bytes const result(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(stream.total_out));
  deflateEnd(&stream);
  return result;
}

class IdxFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "ddp-idx-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    write("train-images-idx3-ubyte.gz", compressed(image_bytes(30, 4, 5)));
    write("train-labels-idx1-ubyte.gz", compressed(label_bytes(30)));
    write("t10k-images-idx3-ubyte.gz", compressed(image_bytes(20, 4, 5)));
    write("t10k-labels-idx1-ubyte.gz", compressed(label_bytes(20)));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::filesystem::path path(std::string const& name) const { return folder_ / name; }
  void write(std::string const& name, Bytes const& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }

  // That reading the folder fails in this way, with all of these in the message.
  template <class... Parts>
  void expect_error(InputError::Kind kind, Parts const&... parts) const {
    try {
      static_cast<void>(read_data_set(folder_));
      FAIL() << "the data was accepted";
    } catch (InputError const& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_THAT(error.what(), AllOf(HasSubstr(parts)...));
    }
  }

  static constexpr auto kMissing = InputError::Kind::missing;
  static constexpr auto kDamaged = InputError::Kind::damaged;
  std::filesystem::path folder_;
};

TEST_F(IdxFile, IsReadCompressedAndPlain) {
  write("plain", image_bytes(3, 4, 5));
  for (char const* const name : {"plain", "train-images-idx3-ubyte.gz"}) {
    Idx const idx = read_idx(path(name), 3);
    EXPECT_EQ(idx.extents[1], 4U);
    EXPECT_EQ(idx.extents[2], 5U);
    ASSERT_EQ(idx.values.size(), idx.extents[0] * 20);
    for (std::size_t i = 0; i < idx.values.size(); ++i) ASSERT_EQ(idx.values[i], i % 251);
  }
}

TEST_F(IdxFile, FoldersGiveTrainAndTestSets) {
  write("t10k-labels-idx1-ubyte", label_bytes(20));  // without .gz, where that is all there is
  std::filesystem::remove(path("t10k-labels-idx1-ubyte.gz"));
  DataSet const set = read_data_set(folder_);
  EXPECT_EQ(set.train.size(), 30U);
  EXPECT_EQ(set.test.size(), 20U);
  EXPECT_EQ(set.train.image_size(), 20U);
  EXPECT_EQ(set.train.labels[13], 3);
  EXPECT_EQ(set.train.pixels[13 * 20 + 7], (13 * 20 + 7) % 251);
}

TEST_F(IdxFile, AMissingFolderIsNamed) {
  folder_ /= "nowhere";
  expect_error(kMissing, "nowhere", "expected a folder");
  folder_ = folder_.parent_path();
}

TEST_F(IdxFile, AMissingFileIsNamed) {
  std::filesystem::remove(path("train-labels-idx1-ubyte.gz"));
  expect_error(kMissing, "train-labels-idx1-ubyte.gz", "No such file");
}

TEST_F(IdxFile, AFolderInsteadOfAFileIsNoInput) {
  std::filesystem::remove(path("train-labels-idx1-ubyte.gz"));
  std::filesystem::create_directory(path("train-labels-idx1-ubyte.gz"));
  expect_error(kMissing, "train-labels-idx1-ubyte.gz", "directory");
}

TEST_F(IdxFile, ATruncatedGzipIsFoundWhereverItIsCut) {
  Bytes const whole = compressed(image_bytes(30, 4, 5));
  for (std::size_t size = 1; size < whole.size(); ++size) {
    write("train-images-idx3-ubyte.gz", whole.substr(0, size));
    SCOPED_TRACE(size);
    expect_error(kDamaged, "train-images-idx3-ubyte.gz");
  }
  write("train-images-idx3-ubyte.gz", whole.substr(0, whole.size() / 2));
  expect_error(kDamaged, "the gzip stream ends early", "truncated");
}

TEST_F(IdxFile, AFlippedBitInTheStreamIsFound) {
  Bytes damaged = compressed(image_bytes(30, 4, 5));
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 0x10);  // in the checksum
  write("train-images-idx3-ubyte.gz", damaged);
  expect_error(kDamaged, "train-images-idx3-ubyte.gz", "gzip stream is damaged");
}

TEST_F(IdxFile, AnEmptyFileIsCutOff) {
  write("train-images-idx3-ubyte.gz", "");
  expect_error(kDamaged, "magic number", "found 0");
}

TEST_F(IdxFile, AWrongMagicIsShown) {
  write("train-images-idx3-ubyte.gz", compressed(label_bytes(30)));
  expect_error(kDamaged, "train-images-idx3-ubyte.gz", "expected magic number 0x00000803",
               "found 0x00000801");
  write("train-images-idx3-ubyte.gz", "<html>404 Not Found</html>");
  expect_error(kDamaged, "expected magic number 0x00000803", "found 0x3c68746d");
}

TEST_F(IdxFile, AHeaderCutOffIsShown) {
  write("train-images-idx3-ubyte.gz", compressed(image_bytes(30, 4, 5).substr(0, 10)));
  expect_error(kDamaged, "expected 4 bytes of extents, found 2");
}

TEST_F(IdxFile, FewerElementsThanTheHeaderSaysAreCounted) {
  write("train-images-idx3-ubyte.gz", compressed(image_bytes(30, 4, 5).substr(0, 16 + 599)));
  expect_error(kDamaged, "expected 600 elements (30 x 4 x 5), found 599");
}

TEST_F(IdxFile, TrailingDataIsRefused) {
  write("train-images-idx3-ubyte.gz", compressed(image_bytes(30, 4, 5) + "x"));
  expect_error(kDamaged, "expected 600 elements (30 x 4 x 5), found more");
}

TEST_F(IdxFile, AHugeHeaderIsRefusedWithoutTheMemoryForIt) {
  write("train-images-idx3-ubyte.gz",
        compressed(word(0x803) + word(0xffffffff) + word(0xffffffff) + word(28)));
  expect_error(kDamaged, "claims more than");
  write("train-images-idx3-ubyte.gz", compressed(word(0x803) + word(4000000) + word(28) + word(28) + "few"));
  expect_error(kDamaged, "expected 3136000000 elements", "found 3");
}

TEST_F(IdxFile, CountsThatDisagreeAreBothShown) {
  write("train-labels-idx1-ubyte.gz", compressed(label_bytes(29)));
  expect_error(kDamaged, "train-labels-idx1-ubyte.gz", "expected 30 labels", "train-images-idx3-ubyte.gz",
               "found 29");
}

TEST_F(IdxFile, ALabelThatIsNoClassIsShownWithItsPlace) {
  Bytes labels = label_bytes(20);
  labels[8 + 11] = 10;
  write("t10k-labels-idx1-ubyte.gz", compressed(labels));
  expect_error(kDamaged, "t10k-labels-idx1-ubyte.gz", "expected labels 0 to 9, found 10 at position 11");
}

TEST_F(IdxFile, TestImagesOfAnotherSizeAreRefused) {
  write("t10k-images-idx3-ubyte.gz", compressed(image_bytes(20, 5, 4)));
  expect_error(kDamaged, "expected test images of 4 x 5", "found 5 x 4");
}

TEST_F(IdxFile, NoImagesAtAllAreRefused) {
  write("train-images-idx3-ubyte.gz", compressed(image_bytes(0, 4, 5)));
  write("train-labels-idx1-ubyte.gz", compressed(label_bytes(0)));
  expect_error(kDamaged, "expected images, found none");
}

TEST(SyntheticDataSet, IsTheSameForEveryoneAndEachClassIsThere) {
  DataSet const set = make_synthetic_data_set(500, 100);
  DataSet const longer = make_synthetic_data_set(600, 100);
  EXPECT_EQ(set.test.pixels, longer.test.pixels);
  EXPECT_TRUE(std::equal(set.train.pixels.begin(), set.train.pixels.end(), longer.train.pixels.begin()));
  EXPECT_NE(std::vector<std::uint8_t>(set.train.pixels.begin(), set.train.pixels.begin() + 784),
            std::vector<std::uint8_t>(set.test.pixels.begin(), set.test.pixels.begin() + 784));
  for (std::uint8_t label = 0; label < kClasses; ++label) {
    EXPECT_THAT(set.train.labels, testing::Contains(label));
  }
}

TEST(Loader, NormalizesByTheTrainingPixels) {
  ImageSet const images{1, 2, {0, 100, 100, 200}, {3, 4}};
  Loader loader(images);
  std::vector<std::size_t> const indices{1, 0};
  nn::Samples const samples = loader.load(indices);
  EXPECT_EQ(samples.inputs.shape, (ddp::Shape{2, 2}));
  auto const values = samples.inputs.as<float>();
  float const deviation = std::sqrt(5000.0F);
  EXPECT_FLOAT_EQ(values[0], 0.0F);
  EXPECT_FLOAT_EQ(values[1], 100 / deviation);
  EXPECT_FLOAT_EQ(values[2], -100 / deviation);
  EXPECT_EQ(samples.labels.as<std::uint8_t>()[0], 4);
  EXPECT_EQ(loader.load(std::span<std::size_t const>()).inputs.shape, (ddp::Shape{0, 2}));
}

}  // namespace
}  // namespace data

// Ranks of a program that writes numbers as its user does, from its first line on.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/core/text.hpp"
#include "support/fakes/other_locale.hpp"
#include "support/models/checkpoint_model.hpp"
#include "support/ranks/multi_process.hpp"

namespace ddp::testing {
namespace {

OtherLocale const kBeforeTheWorld;

TEST(Locale, RanksFindEachOther) {
  EXPECT_EQ(world().all_reduce_scalar(1), world().size());
  EXPECT_EQ(world().all_reduce_scalar(1000.5), 1000.5 * world().size());
}

TEST(Locale, ACheckpointIsFoundInAnotherOne) {
  std::string const folder =
      gathered((std::filesystem::temp_directory_path() / text("ddp-locale-", ::getpid())).string())[0];
  auto const train = [&](std::uint64_t step) {
    CheckpointModel model(static_cast<int>(step));
    Checkpoint checkpoint(world(), folder, model.tensors());
    auto const restored = checkpoint.restore();
    checkpoint.save({.step = step});
    checkpoint.wait();
    return restored ? restored->position.step : 0;
  };
  EXPECT_EQ(train(1200), 0);
  std::locale const german = std::locale::global(std::locale::classic());
  EXPECT_EQ(train(1300), 1200);
  std::locale::global(german);
  EXPECT_EQ(train(1400), 1300);
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ddp::testing

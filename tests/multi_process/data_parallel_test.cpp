// The example data_parallel as a user runs it, beside train_mlp.
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "ddp/core/text.hpp"
#include "support/launcher/shell.hpp"

namespace ddp::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class DataParallelExample : public ::testing::Test {
 protected:
  [[nodiscard]] ShellOutcome run(std::string const& program, std::string const& arguments) const {
    return run_shell(folder_.path(), text("CUDA_VISIBLE_DEVICES= exec ", program, " ", arguments));
  }
  [[nodiscard]] std::vector<nlohmann::json> train(std::string const& program,
                                                  std::string const& arguments) const {
    auto const outcome = run(program,
                             "--synthetic --limit 1050 --hidden 32,16 --batch 100 --epochs 2 --seed 3 "
                             "--log-json log.json " +
                                 arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<nlohmann::json> records;
    for (std::string const& line : lines(read_file(folder_.path() / "log.json"))) {
      records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }
  TemporaryFolder folder_;
};

void expect_close(nlohmann::json const& expected, nlohmann::json const& found, char const* what) {
  double const a = expected.at(what).get<double>();
  EXPECT_NEAR(a, found.at(what).get<double>(), 1e-5 * std::abs(a)) << what << " of " << expected.dump();
}

TEST_F(DataParallelExample, D7AMisspeltVariableIsNamedWithoutAWorldToo) {
  auto const outcome = run_shell(folder_.path(), text("CUDA_VISIBLE_DEVICES= CUDA_VISIBLE_DIVICES=0 exec ",
                                                      DATA_PARALLEL, " --synthetic --limit 100 --epochs 1"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("did you mean CUDA_VISIBLE_DEVICES?"));
}

TEST_F(DataParallelExample, P11DoesTheTrainingOfTrainMlpOnAnyNumberOfCpus) {
  auto const alone = train(TRAIN_MLP, "");
  for (int const cpus : {1, 3}) {
    auto const found = train(DATA_PARALLEL, text("--cpus ", cpus));
    ASSERT_THAT(found, SizeIs(3));
    ASSERT_THAT(alone, SizeIs(3));
    for (std::size_t epoch = 0; epoch < 2; ++epoch) {
      expect_close(alone[epoch], found[epoch], "loss");
      expect_close(alone[epoch], found[epoch], "test_loss");
    }
    EXPECT_EQ(found[2].at("ranks"), cpus);
    auto const& expected = alone[2].at("parameters");
    ASSERT_EQ(found[2].at("parameters").size(), expected.size());
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_EQ(found[2].at("parameters")[p].at("name"), expected[p].at("name"));
      expect_close(expected[p], found[2].at("parameters")[p], "norm");
    }
  }
}

TEST_F(DataParallelExample, RefusesWhatItDoesNotKnow) {
  auto const cpus = run(DATA_PARALLEL, "--cpus none");
  EXPECT_EQ(cpus.exit_code, 64);
  EXPECT_THAT(cpus.err, HasSubstr("--cpus: expected a number from 1 to 1024, found \"none\""));
  EXPECT_EQ(run(DATA_PARALLEL, "--checkpoint here").exit_code, 64);
  auto const missing = run(DATA_PARALLEL, "--data nowhere");
  EXPECT_EQ(missing.exit_code, 66);
  EXPECT_THAT(missing.err, HasSubstr("nowhere"));
  EXPECT_THAT(run(DATA_PARALLEL, "--help").out, HasSubstr("virtual CPU devices"));
}

}  // namespace
}  // namespace ddp::testing

#include "train_mlp/summary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iomanip>
#include <numbers>
#include <span>
#include <string>

#include "ddp/core/text.hpp"

namespace train_mlp {
namespace {

// FNV-1a, 64 bits.
std::string hash_of(ddp::TensorView const& host) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (unsigned char const byte : std::span(static_cast<unsigned char const*>(host.data), host.bytes())) {
    hash = (hash ^ byte) * 0x100000001b3U;
  }
  return ddp::text(std::hex, std::setw(16), std::setfill('0'), hash);
}

}  // namespace

void add(nn::Score& total, nn::Score const& score) {
  total.loss += score.loss;
  total.correct += score.correct;
  total.samples += score.samples;
}

double mean_loss(nn::Score const& score) {
  return score.samples == 0 ? 0.0 : score.loss / static_cast<double>(score.samples);
}

double accuracy(nn::Score const& score) {
  return score.samples == 0 ? 0.0 : static_cast<double>(score.correct) / static_cast<double>(score.samples);
}

std::vector<std::size_t> widths(data::DataSet const& set, Options const& options) {
  std::vector<std::size_t> all{set.train.image_size()};
  all.insert(all.end(), options.hidden.begin(), options.hidden.end());
  all.push_back(data::kClasses);
  return all;
}

std::vector<ParameterRecord> condense(std::vector<nn::Weight*> const& weights) {
  std::vector<ParameterRecord> records;
  for (nn::Weight const* const weight : weights) {
    double squares = 0;
    double sum = 0;
    ddp::Tensor const values = weight->context().download(weight->value());
    for (float const value : values.as<float>()) {
      squares += double{value} * double{value};
      sum += double{value};
    }
    records.push_back({weight->name(), std::sqrt(squares), sum, hash_of(values)});
  }
  return records;
}

data::DataSet load(Options const& options) {
  constexpr std::size_t kTrainImages = 60000;
  constexpr std::size_t kTestImages = 10000;
  data::DataSet set;
  if (options.synthetic) {
    std::size_t const images = options.limit.value_or(kTrainImages);
    set = data::make_synthetic_data_set(images, std::min(images, kTestImages));
  } else {
    set = data::read_data_set(options.data);
  }
  if (options.limit) set.train.truncate(*options.limit);
  return set;
}

Problem describe(data::InputError const& error, Options const& options) {
  bool const missing = error.kind() == data::InputError::Kind::missing;
  char const* const advice = missing && !options.data_given
                                 ? ". Install the Debian package dataset-fashion-mnist, name a folder with "
                                   "--data DIR, or train on made-up images with --synthetic"
                                 : "";
  return {missing ? kExitNoInput : kExitDamagedInput, ddp::text(error.what(), advice)};
}

double learning_rate_after(std::size_t steps_done, double all_steps, Options const& options) {
  return options.learning_rate / 2 *
         (1 + std::cos(std::numbers::pi * static_cast<double>(steps_done) / all_steps));
}

}  // namespace train_mlp

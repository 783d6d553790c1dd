// What docs/move_a_program.md takes from a program, beside what docs/libtorch.md does.
#pragma once

#include <span>

#include "libtorch.hpp"

namespace move_a_program {
using namespace libtorch;

void initialise(torch::nn::Module& module);
void contrast(torch::Tensor const& mine, torch::Tensor const& all);
struct Images {
  std::optional<std::size_t> size() const;
  Example get_batch(std::span<std::size_t const> samples);
};
void count_correct(torch::Tensor const& output, torch::Tensor const& target);
void train_on(std::vector<std::int64_t> const& samples);

extern ddp::libtorch::DistributedDataParallel critic;
extern torch::Tensor loss_sum;
extern torch::Tensor mine;
extern c10::Device device;
extern Images images;
extern std::size_t samples;
extern std::uint64_t epochs;
}  // namespace move_a_program

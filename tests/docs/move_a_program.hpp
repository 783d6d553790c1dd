// What docs/move_a_program.md takes from a program, beside what docs/libtorch.md does.
#pragma once

#include "libtorch.hpp"

namespace move_a_program {
using namespace libtorch;

void initialise(torch::nn::Module& module);
void contrast(torch::Tensor const& mine, torch::Tensor const& all);
void train_on(std::vector<std::int64_t> const& samples);

extern ddp::libtorch::DistributedDataParallel critic;
extern torch::Tensor loss_sum;
extern torch::Tensor mine;
extern std::size_t samples;
extern std::uint64_t epochs;
}  // namespace move_a_program

// What a program that trains with PyTorch's C++ library includes, beside <torch/torch.h>; it links
// ddp::libtorch.
#pragma once

#include "ddp/libtorch/bucket_hooks.hpp"
#include "ddp/libtorch/checkpoint.hpp"
#include "ddp/libtorch/collectives.hpp"
#include "ddp/libtorch/data_parallel.hpp"
#include "ddp/libtorch/distributed_data_parallel.hpp"
#include "ddp/libtorch/distributed_sampler.hpp"
#include "ddp/libtorch/optimizers.hpp"
#include "ddp/libtorch/replicated.hpp"
#include "ddp/libtorch/sharded_optimizer.hpp"
#include "ddp/libtorch/step_graph.hpp"
#include "ddp/libtorch/sync_batch_norm.hpp"

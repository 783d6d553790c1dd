// Everything that a training program needs.
#pragma once

#include "ddp/core/error.hpp"
#include "ddp/core/tensor.hpp"
#include "ddp/device/host_threads.hpp"
#include "ddp/device/memory_settings.hpp"
#include "ddp/device/queries.hpp"
#include "ddp/device/random.hpp"
#include "ddp/parallel/checkpoint.hpp"
#include "ddp/parallel/data_parallel.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "ddp/parallel/distributed_sampler.hpp"
#include "ddp/parallel/gather.hpp"
#include "ddp/parallel/parallel_apply.hpp"
#include "ddp/parallel/replicate.hpp"
#include "ddp/parallel/scatter.hpp"
#include "ddp/parallel/stop_signal.hpp"
#include "ddp/parallel/world.hpp"

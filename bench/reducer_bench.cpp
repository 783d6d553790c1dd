#include "reducer_bench.hpp"

#include <chrono>
#include <iostream>

#include "ddp/core/text.hpp"
#include "null_communicator.hpp"
#include "reducer/reducer.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The first step may rebuild the buckets and the caches are cold.
constexpr std::size_t kWarmUpSteps = 5;

std::vector<Parameter> make_parameters(std::size_t count, TensorView const& value) {
  std::vector<Parameter> parameters;
  parameters.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    parameters.push_back({text("layer", i, ".weight"), value, [](TensorView const&) {}, {}});
  }
  return parameters;
}

}  // namespace

ReducerRow measure_reducer(std::size_t parameters, std::size_t elements, std::size_t steps) {
  // No value is read or written: all parameters share one.
  Tensor const value = Tensor::zeros(Shape{elements}, DType::f32);
  NullCommunicator communicator(Rank{0}, 1);
  auto const compute = HostStream::inline_stream();
  HostStream comm_stream;
  Reducer reducer(ReducerRanks(text("bench", parameters, "x", elements), make_in_process_control(1).front(),
                               {Rank{0}}, std::chrono::minutes(1)),
                  {{Device{}, &communicator, compute.get(), &comm_stream}},
                  make_parameters(parameters, value), {});

  std::vector<double> ready_ns;
  std::vector<double> synchronize_us;
  for (std::size_t step = 0; step < kWarmUpSteps + steps; ++step) {
    std::size_t const sent_before = communicator.operations();
    auto const begin = Clock::now();
    for (std::size_t i = parameters; i-- > 0;) reducer.gradient_ready(i);
    auto const marked = Clock::now();
    reducer.synchronize();
    auto const end = Clock::now();
    require(communicator.operations() - sent_before >= reducer.plan().buckets().size(),
            "ddp-bench reducer: a step sent fewer messages than there are buckets, so it measured nothing");
    if (step < kWarmUpSteps) continue;
    ready_ns.push_back(std::chrono::duration<double, std::nano>(marked - begin).count() /
                       static_cast<double>(parameters));
    synchronize_us.push_back(std::chrono::duration<double, std::micro>(end - marked).count());
  }
  return {parameters, elements, reducer.plan().buckets().size(), median(ready_ns), median(synchronize_us)};
}

void run_reducer(ReducerBenchOptions const& options) {
  if (!options.json.empty()) check_writable(options.json);
  Circumstances const where = circumstances("null", 1, Device{});
  print_header(std::cout, "reducer", where);
  print_reducer_columns(std::cout);
  std::vector<ReducerRow> rows;
  for (std::size_t const elements : options.elements) {
    for (std::size_t const parameters : options.parameters) {
      rows.push_back(measure_reducer(parameters, elements, options.steps));
      print(std::cout, rows.back());
    }
  }
  if (!options.json.empty()) write_file(options.json, to_json(where, rows));
}

}  // namespace ddp::bench

// One side of compare.py: times the cases that it is told, and writes a line of JSON for each into
// FOLDER/rankR.jsonl.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "compare_ddp/cases.hpp"
#include "compare_ddp/loaded.hpp"
#include "compare_ddp/master_values.hpp"
#include "compare_ddp/side.hpp"
#include "ddp/core/text.hpp"
#include "ddp/libtorch/optimizers.hpp"
#include "libtorch/command_line.hpp"
#include "libtorch/training.hpp"
#include "statistics.hpp"

namespace compare {
namespace {

struct Options {
  std::string folder;
  std::vector<std::string> cases;
  std::vector<std::string> modes;
  std::int64_t steps = 0;
  std::int64_t warm_up = 0;
  bool tiny = false;
  bool keep_buffers = false;
  bool without_exchange = false;
  bool bf16 = false;
  bool checked = false;
  bool deterministic = false;
  bool masters = false;
  bool statistics = false;
  bool update_per_bucket = false;
  bool profile = false;
  bool graph = false;
  std::string shard;
  std::int64_t bucket_mib = 0;
};

/// A hook that does nothing, as cheap as one can be.
struct EmptyHook : torch::autograd::PostAccumulateGradHook {
  void operator()(torch::autograd::Variable const&) override {}
};

/// When each step ended: events of the current stream on a GPU, so that nothing waits, and the clock on a
/// CPU.
class StepTimes {
 public:
  explicit StepTimes(torch::Device device) : device_(device) {}

  void mark() {
    if (device_.is_cpu()) {
      clocks_.push_back(std::chrono::steady_clock::now());
      return;
    }
    c10::impl::VirtualGuardImpl const guard(device_.type());
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT).record(guard.getStream(device_));
  }

  /// Milliseconds between neighbouring marks. The device has reached the last one.
  [[nodiscard]] std::vector<double> milliseconds() const {
    std::vector<double> all;
    for (std::size_t i = 1; i < clocks_.size(); ++i) {
      all.push_back(std::chrono::duration<double, std::milli>(clocks_[i] - clocks_[i - 1]).count());
    }
    for (std::size_t i = 1; i < events_.size(); ++i) all.push_back(events_[i - 1].elapsedTime(events_[i]));
    return all;
  }

 private:
  torch::Device device_;
  std::vector<std::chrono::steady_clock::time_point> clocks_;
  std::vector<c10::Event> events_;
};

void wait(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

nlohmann::json memory(torch::Device device) {
  if (device.is_cpu()) return nlohmann::json::object();
  auto* const allocator = c10::getDeviceAllocator(device.type());
  auto const stats = allocator->getDeviceStats(device.index());
  auto const [free, total] = allocator->getMemoryInfo(device.index());
  return {{"kept_allocated_bytes", stats.allocated_bytes[0].current},
          {"peak_allocated_bytes", stats.allocated_bytes[0].peak},
          {"peak_reserved_bytes", stats.reserved_bytes[0].peak},
          {"device_used_bytes", total - free}};
}

/// Saves what happens in `work` as a trace of PyTorch's profiler: on a GPU kernels and calls of CUDA.
void profile(torch::Device device, std::string const& path, std::function<void()> const& work) {
  using torch::profiler::impl::ActivityType;
  torch::profiler::impl::ProfilerConfig const config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<ActivityType> const seen{device.is_cpu() ? ActivityType::CPU : ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, seen);
  torch::autograd::profiler::enableProfiler(config, seen);
  work();
  torch::autograd::profiler::disableProfiler()->save(path);
}

/// The tensors that training changes, kept on the host, so that every mode begins with the same.
class InitialState {
 public:
  explicit InitialState(torch::nn::Module const& net) : changed_(net.parameters()) {
    for (auto const& buffer : net.buffers()) changed_.push_back(buffer);
    for (auto const& each : changed_)
      kept_.push_back(each.detach().to(torch::kCPU, each.scalar_type(), false, /*copy=*/true));
  }

  /// Values as they were, no gradients, no hooks.
  void restore() const {
    torch::NoGradGuard const no_grad;
    for (std::size_t i = 0; i < changed_.size(); ++i) {
      torch::Tensor each = changed_[i];
      each.copy_(kept_[i]);
      each.mutable_grad().reset();
      if (each.requires_grad()) torch::autograd::impl::set_post_acc_grad_hooks(each, nullptr);
    }
  }

 private:
  std::vector<torch::Tensor> changed_;
  std::vector<torch::Tensor> kept_;
};

/// Of all gradients together. AdamW hides how gradients are scaled; this does not.
double norm_of(std::vector<torch::Tensor> const& gradients) {
  double squares = 0;
  for (auto const& gradient : gradients) {
    if (!gradient.defined()) continue;  // a layer that was left out
    squares += std::pow(gradient.to(torch::kFloat32).norm().item<double>(), 2);
  }
  return std::sqrt(squares);
}

/// Those that are averaged on this rank: with a sharded optimizer, of its pieces.
std::vector<torch::Tensor> averages(std::vector<torch::Tensor> const& parameters,
                                    ddp::libtorch::ShardedOptimizer const* sharded) {
  std::vector<torch::Tensor> all;
  if (sharded == nullptr) {
    for (auto const& parameter : parameters) all.push_back(parameter.grad());
    return all;
  }
  auto const trained = sharded->parameters();
  for (auto const& piece : sharded->pieces()) {
    torch::Tensor const& gradient = trained[piece.parameter].parameter.grad();
    all.push_back(gradient.as_strided({piece.tensor.numel()}, {1},
                                      gradient.storage_offset() + static_cast<std::int64_t>(piece.offset)));
  }
  return all;
}

nlohmann::json measure(Side& side, Options const& options, std::string const& name, Case const& one,
                       std::string const& mode) {
  torch::Device const device = side.device();
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->emptyCache();
  auto const parameters = one.net->parameters();
  std::uint64_t const first_digest = digest(*one.net);
  std::optional<MasterValues> masters;
  if (options.masters) masters.emplace(parameters);
  ddp::libtorch::AdamW optimizer(masters ? masters->values() : parameters,
                                 torch::optim::AdamWOptions(one.learning_rate));
  if (mode == "hooks") {
    for (auto const& parameter : parameters) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<EmptyHook>());
    }
  }
  std::unique_ptr<Wrapped> wrapped;
  bool const plain = mode == "plain";
  bool const per_bucket = mode == "ddp" && options.update_per_bucket;
  if ((mode == "ddp" || plain) && !options.without_exchange) {
    WrapOptions how{.broadcast_buffers = !options.keep_buffers,
                    .bf16 = !plain && options.bf16,
                    .checked = !plain && options.checked,
                    .deterministic = !plain && options.deterministic,
                    .statistics = !plain && options.statistics,
                    .clip_norm = one.clip_norm,
                    .bucket_mib = plain ? 0 : options.bucket_mib};
    if (per_bucket) how.update = [&](auto const& some) { optimizer.update(some); };
    if (!plain && !options.shard.empty()) {
      using Update = ddp::libtorch::ShardedOptimizer::Update;
      how.shard = options.shard == "in-step" ? Update::in_step : Update::in_backward;
      how.make = [&](auto groups) {
        return std::make_unique<ddp::libtorch::AdamW>(groups, torch::optim::AdamWOptions(one.learning_rate));
      };
    }
    wrapped = side.wrap(*one.net, how);
  }
  auto* const sharded = wrapped ? wrapped->sharded() : nullptr;
  wait(device);
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());

  auto const forward = [&] {
    std::optional<training::Autocast> autocast;
    if (one.autocast) autocast.emplace(device);
    return one.loss();
  };
  torch::Tensor loss;
  bool const side_clips = wrapped && wrapped->clipped_norm().defined();
  double norm_before = 0;  // of the gradients that were clipped here
  auto const enqueue = [&] {
    one.net->zero_grad();
    for (int micro_step = 1; micro_step < one.micro_steps; ++micro_step) {
      auto const backward = [&] { forward().backward(); };
      wrapped ? wrapped->without_exchange(backward) : backward();
    }
    if (wrapped) wrapped->before_forward();
    loss = forward();
    if (wrapped) wrapped->before_backward(loss);
    loss.backward();
    if (one.clip_norm > 0 && !side_clips) {
      norm_before = torch::nn::utils::clip_grad_norm_(parameters, one.clip_norm);
    }
    if (wrapped) optimizer.skip_where(wrapped->found_nonfinite());
    if (sharded != nullptr) {
      sharded->step();
    } else if (!per_bucket) {
      if (masters) masters->take_gradients();
      optimizer.step();
      if (masters) masters->give_values();
    }
    if (mode == "meet") side.meet();
  };
  std::unique_ptr<Recorded> recorded;
  if (options.graph) recorded = side.record(wrapped.get(), enqueue);
  std::vector<torch::Tensor> losses;
  auto const step = [&] {
    recorded ? recorded->run() : enqueue();
    losses.push_back(recorded ? loss.detach().clone() : loss.detach());  // a graph's are all in one place
  };
  step();
  double first_norm = norm_before;
  if (one.clip_norm == 0) first_norm = norm_of(averages(parameters, sharded));
  if (side_clips) first_norm = wrapped->clipped_norm().item<double>();
  for (std::int64_t i = 1; i < options.warm_up; ++i) step();
  wait(device);
  side.barrier();
  StepTimes times(device);
  auto const begin = std::chrono::steady_clock::now();
  times.mark();
  for (std::int64_t i = 0; i < options.steps; ++i) {
    step();
    times.mark();
  }
  std::chrono::duration<double, std::milli> const enqueued = std::chrono::steady_clock::now() - begin;
  wait(device);
  auto const milliseconds = times.milliseconds();
  std::vector<double> values;
  for (auto const& each : losses) values.push_back(each.item<double>());
  auto const count = static_cast<double>(milliseconds.size());
  nlohmann::json line{{"case", name},
                      {"mode", mode},
                      {"rank", side.rank()},
                      {"median_ms", ddp::bench::median(milliseconds)},
                      {"mean_ms", std::accumulate(milliseconds.begin(), milliseconds.end(), 0.0) / count},
                      {"host_ms", enqueued.count() / count},
                      {"parameters", parameters.size()},
                      {"losses", values},
                      {"first_gradient_norm", first_norm},
                      {"norm_of_pieces", sharded != nullptr},
                      {"first_digest", std::to_string(first_digest)},
                      {"last_digest", std::to_string(digest(*one.net))},
                      {"attention", one.attention}};
  if (recorded) line["why_eager"] = recorded->why_eager();
  line.update(memory(device));
  if (options.profile) {
    auto const file = ddp::text(side.name(), "-", name, "-", mode, "-rank", side.rank(), ".trace.json");
    profile(device, std::filesystem::path(options.folder) / file, [&] {
      for (int i = 0; i < 4; ++i) step();
      wait(device);
    });
  }
  return line;
}

void run(Options const& options) {
  auto const side = make_side();
  if (side->device().is_cuda()) c10::impl::VirtualGuardImpl(torch::kCUDA).setDevice(side->device());
  training::use_fast_kernels();
  std::ofstream out(std::filesystem::path(options.folder) /
                    ("rank" + std::to_string(side->rank()) + ".jsonl"));
  out << nlohmann::json{{"side", side->name()},
                        {"rank", side->rank()},
                        {"ranks", side->size()},
                        {"torch", TORCH_VERSION},
                        {"libraries", loaded_libraries()}}
      << std::endl;
  for (std::string const& name : options.cases) {
    Case const one = make_case(name, options.tiny, side->rank(), side->device());
    InitialState const initial(*one.net);
    for (std::string const& mode : options.modes) {
      initial.restore();
      out << measure(*side, options, name, one, mode) << std::endl;
    }
  }
  side->barrier();
  if (!out) throw std::runtime_error("cannot write into " + options.folder);
}

}  // namespace
}  // namespace compare

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  compare::Options options;
  po::options_description all("Options", 100);
  auto add = all.add_options();
  add("out", po::value(&options.folder)->required(), "folder for rankR.jsonl");
  add("case", po::value(&options.cases)->required(), "which to time; may be given again");
  add("mode", po::value(&options.modes)->required(),
      "local, meet, hooks, ddp, or plain, which is ddp without the options below; may be given again");
  add("steps", command_line::count(options.steps, 60), "timed ones");
  add("warm-up", command_line::count(options.warm_up, 12), "steps before these");
  add("tiny", po::bool_switch(&options.tiny), "sizes for a CPU");
  add("keep-buffers", po::bool_switch(&options.keep_buffers), "do not broadcast buffers");
  add("bf16", po::bool_switch(&options.bf16), "gradients travel as bf16");
  add("checked", po::bool_switch(&options.checked), "gradients are looked at for NaN and infinity");
  add("deterministic", po::bool_switch(&options.deterministic), "gradients are added up in rank order");
  add("masters", po::bool_switch(&options.masters), "the optimizer has f32 values of 16-bit parameters");
  add("statistics", po::bool_switch(&options.statistics), "every step is measured");
  add("update-per-bucket", po::bool_switch(&options.update_per_bucket),
      "update parameters while other gradients travel");
  add("graph", po::bool_switch(&options.graph), "replay steps as one CUDA graph, on GPUs");
  add("shard", po::value(&options.shard)->value_name("WHEN"),
      "each rank keeps a part of the optimizer, and updates it in-step or in-backward");
  add("bucket-mib", po::value(&options.bucket_mib)->value_name("N"),
      "MiB of a bucket, instead of the default");
  add("profile", po::bool_switch(&options.profile),
      "afterwards four more steps of each mode; what the GPU did becomes a trace in FOLDER");
  add("without-exchange", po::bool_switch(&options.without_exchange),
      "send no gradients: what the comparison must notice");
  return command_line::run(argc, argv, argv[0], all, [&] {
    command_line::expect(options.steps > 0 && options.warm_up > 0, "--steps and --warm-up from 1 on");
    command_line::expect(
        options.shard.empty() || options.shard == "in-step" || options.shard == "in-backward",
        "--shard in-step or in-backward");
    command_line::expect(!options.masters || (options.shard.empty() && !options.update_per_bucket),
                         "--masters without --shard and --update-per-bucket");
    compare::run(options);
  });
}

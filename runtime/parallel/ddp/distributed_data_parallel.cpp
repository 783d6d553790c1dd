#include "ddp/parallel/distributed_data_parallel.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "comm/communicator_backend.hpp"
#include "core/system/own_process.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/parallel/autograd_support.hpp"
#include "device/cuda/backend.hpp"
#include "observe/flight_recorder.hpp"
#include "parallel/ddp/buffer_sync.hpp"
#include "parallel/ddp/device_lane.hpp"
#include "parallel/ddp/model_agreement.hpp"
#include "parallel/ddp/statistics_report.hpp"
#include "parallel/world/world_state.hpp"
#include "reducer/checks/parameter_check.hpp"
#include "reducer/memory/coalesced_tensors.hpp"
#include "reducer/memory/step_words.hpp"
#include "reducer/placement_log.hpp"
#include "reducer/reducer.hpp"

namespace ddp {
namespace {

// The pause between reports of steps to ddp-launch. The first is sent at once: it says that training runs.
constexpr std::chrono::seconds kBetweenReports{1};

// How much memory, beside the model, the values of small tensors may take while they are sent.
constexpr Bytes kMostPacked = 25_MiB;

// How many of `tensors` can be sent at once.
std::size_t sent_together(std::span<TensorView const> tensors) {
  std::size_t packed = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].bytes() < FlatLayout::kSmall.value) packed += tensors[t].bytes();
    if (packed > kMostPacked.value) return t;
  }
  return tensors.size();
}

void broadcast_together(ReducerLane const& lane, std::span<TensorView const> tensors) {
  CoalescedTensors const values(FlatLayout(tensors), tensors, lane.device);
  bool const sends = lane.communicator->rank() == 0;
  lane.comm_stream->wait(*lane.compute_stream);
  if (sends) values.pack(*lane.comm_stream);
  for (TensorView const& message : values.messages()) {
    if (message.count() != 0) lane.communicator->broadcast(message, Rank{0}, *lane.comm_stream);
  }
  if (!sends) values.unpack(*lane.comm_stream);
  lane.comm_stream->synchronize();
  lane.compute_stream->wait(*lane.comm_stream);
}

// As bytes, so that tensors of all dtypes can share a message.
template <class Tensors>
void collect_values(Tensors const& tensors, Device device, std::vector<TensorView>& values) {
  for (auto const& tensor : tensors) {
    TensorView const& value = tensor.value;
    if (value.device == device) values.push_back({value.data, Shape{value.bytes()}, DType::u8, device});
  }
}

// Sends rank 0's values of those parameters and buffers that lie on the lane's device to every rank, in few
// messages (R9). Collective; the lane's compute stream goes on behind it.
void broadcast_values(ReducerLane const& lane, std::span<Parameter const> parameters,
                      std::span<NamedTensor const> buffers) {
  std::vector<TensorView> values;
  collect_values(parameters, lane.device, values);
  collect_values(buffers, lane.device, values);
  for (std::span<TensorView const> rest = values; !rest.empty();) {
    std::size_t const next = sent_together(rest);
    broadcast_together(lane, rest.first(next));
    rest = rest.subspan(next);
  }
}

}  // namespace

// What one membership of the World has. Members are destroyed last to first: the reducer before its lanes.
struct DistributedDataParallel::Parts {
  std::vector<std::unique_ptr<DeviceLane>> lanes;
  std::unique_ptr<MarkedBuffers> buffers;
  std::unique_ptr<StatisticsReport> statistics;  // with Options::statistics
  std::unique_ptr<Reducer> reducer;
};

// Destroyed last to first too.
struct DistributedDataParallel::Engine final : WorldFollower {
  Engine(DistributedDataParallel& made, World here) : owner(&made), world(std::move(here)) {}
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  ~Engine() override { std::erase(WorldAccess::state(world).followers, this); }

  [[nodiscard]] std::string why_not_rebuilt(bool goes_back) const override {
    std::string why = parts.reducer->why_not_rebuilt(goes_back);
    return why.empty() && adapter ? adapter->why_not() : why;
  }
  [[nodiscard]] bool is_whole() const override { return parts.reducer->is_whole(); }
  [[nodiscard]] std::uint64_t steps() const override {
    return steps_before + parts.reducer->committed_steps();
  }
  [[nodiscard]] bool is_ahead_of_gpu() const override {
    return parts.reducer->committed_steps() < parts.reducer->steps();
  }
  [[nodiscard]] bool awaits_update() const override { return parts.reducer->awaits_update(); }
  [[nodiscard]] std::vector<TensorView> values() const override {
    if (adapter) adapter->settle();
    std::vector<TensorView> all;
    for (Parameter const& parameter : parts.reducer->parameters()) all.push_back(parameter.value);
    for (NamedTensor const& buffer : options.buffers) all.push_back(buffer.value);
    return all;
  }
  [[nodiscard]] std::string form() const override {
    return describe_model(world.device(), parts.reducer->parameters(), options.buffers) +
           (hook.reduce ? text("comm hook ", hook.name, '\n') : "");
  }
  void have_done(std::uint64_t steps) override { steps_before += steps - this->steps(); }
  void abort(std::string_view reason) noexcept override {
    for (auto const& lane : parts.lanes) lane->lane().communicator->abort(reason);
    if (adapter) adapter->abort(reason);
  }
  void drain(std::string_view reason) noexcept override {
    parts.reducer->abandon_step(reason, true);
    for (auto const& lane : parts.lanes) cuda::forget_failures(*lane->lane().compute_stream);
  }
  void follow() override;

  OwnProcess maker;
  DistributedDataParallel* owner;  // which may be moved
  World world;
  Options options;
  std::vector<Device> devices;                                     // of the lanes
  std::uint64_t steps_before = 0;                                  // of reducers before this one; modulo 2^64
  std::atomic<std::chrono::steady_clock::duration> next_report{};  // since the clock's beginning
  std::optional<AutogradSupport::Following> adapter;
  // What the program has given the reducer, for the next one.
  CommHook hook;
  BucketReady on_bucket;
  SliceReady on_slice;
  Tensor skip;  // ReducerLane::skip
  Parts parts;
};

DistributedDataParallel::DistributedDataParallel(World world, std::vector<Parameter> parameters,
                                                 Options options)
    : engine_(std::make_unique<Engine>(*this, std::move(world))) {
  World& here = engine_->world;
  if (options.compute_stream == nullptr) options.compute_stream = &here.stream();
  Stream const& compute = *options.compute_stream;
  std::string const name = here.next_name();
  auto const check_here = [&] {
    check_parameters(parameters, GradientMemory::Options(options), options.sharding, options.buffers);
    require(compute.device() == here.device(), [&] {
      return text("DistributedDataParallel: expected a stream of ", here.device(), ", found one of ",
                  compute.device());
    });
    if (options.statistics || !here.options().statistics.empty()) engine_->parts.statistics = report_of(name);
    for (NamedTensor const& buffer : options.buffers)
      require_memory([&] { return text("buffer \"", buffer.name, "\""); }, buffer.value);
  };
  engine_->devices = check_replicas(here.control(), name, here.members(), here.device(), parameters,
                                    options.buffers, check_here, Deadline::after(here.options().timeout));
  options.statistics = engine_->parts.statistics != nullptr;  // DDP_STATISTICS asks for them too
  engine_->options = std::move(options);
  build(engine_->parts, name, std::move(parameters), true);
  reducer_ = engine_->parts.reducer.get();
  WorldAccess::state(here).followers.push_back(engine_.get());
}

std::unique_ptr<StatisticsReport> DistributedDataParallel::report_of(std::string const& name) const {
  World const& here = engine_->world;
  std::vector<Rank> const members(here.members().begin(), here.members().end());
  Rank const me = members[here.rank().index()];
  return std::make_unique<StatisticsReport>(members, statistics_file(here.options().statistics, me, name),
                                            here.membership(), engine_->parts.reducer ? steps() : 0);
}

void DistributedDataParallel::build(Parts& parts, std::string const& name, std::vector<Parameter> parameters,
                                    bool gives_values) try {
  World const& here = engine_->world;
  Options const& options = engine_->options;
  std::vector<NamedTensor> const& buffers = options.buffers;
  Stream* const compute = options.compute_stream;
  if (gives_values) log_placements("", parameters, buffers);
  std::vector<ReducerLane> lanes;
  Tensor& skip = engine_->skip;
  bool const may_skip = options.nonfinite == Options::Nonfinite::flag || here.communicator_options().commits;
  if (may_skip && skip.view().data == nullptr) {
    skip = step_words(Shape{1}, DType::f32, engine_->devices.front());
  }
  for (Device const device : engine_->devices) {
    parts.lanes.push_back(std::make_unique<DeviceLane>(
        here, name, device, device == compute->device() ? compute : nullptr, options.deterministic));
    lanes.push_back(parts.lanes.back()->lane());
    lanes.back().skip = skip;
    // The first operation of a communicator may wait for the other ranks: here all come, while buckets of two
    // models may begin in another order on another rank.
    gives_values ? broadcast_values(lanes.back(), parameters, buffers) : meet(lanes.back());
  }
  // All ranks have the values before any goes on: one that throws below aborts its communicators, and another
  // that is still in its broadcast would report that abort, not the reason.
  if (gives_values) {
    static_cast<void>(here.control().all_gather(text(name, "/values"), {}, here.members(),
                                                Deadline::after(here.options().timeout)));
  }
  parts.reducer = std::make_unique<Reducer>(
      ReducerRanks(name, here.shared_control(), {here.members().begin(), here.members().end()},
                   here.options().timeout),
      lanes, std::move(parameters), options,
      text("buffers ", to_string(options.buffer_sync), options.deterministic ? ", deterministic" : ""));
  ReducerLane const& first = lanes.front();
  if (first.device.kind == DeviceKind::cuda &&
      first.communicator->sees_calls()) {  // all ranks are on one host
    parts.reducer->set_cpu_lane([engine = engine_.get(), name] {
      auto& all = engine->parts.lanes;
      all.push_back(std::make_unique<DeviceLane>(engine->world, text(name, "/cpus"), Device{}, nullptr, false,
                                                 DeviceLane::Spares::none));
      return all.back()->lane();
    });
  }
  if (parts.statistics) {
    parts.reducer->report_statistics([report = parts.statistics.get()](std::vector<StepStatistics> steps) {
      report->add(std::move(steps));
    });
  }
  parts.buffers = std::make_unique<MarkedBuffers>(buffers, options.buffer_sync, lanes);
} catch (std::exception const& error) {
  // The others may be waiting for this rank.
  engine_->world.control().report_failure(error);
  for (auto const& lane : parts.lanes) lane->lane().communicator->abort(error.what());
  throw;
}

// The old parts stay until the new ones are complete: if a rank is lost meanwhile, this object must still
// know its parameters, and say that it cannot be used.
void DistributedDataParallel::Engine::follow() {
  std::uint64_t const done = steps();
  std::string const name = world.next_name();
  Parts next;
  if (parts.statistics) next.statistics = owner->report_of(name);
  auto const parameters = parts.reducer->parameters();
  owner->build(next, name, {parameters.begin(), parameters.end()}, false);
  if (hook.reduce) next.reducer->set_comm_hook(hook);
  if (on_bucket) next.reducer->on_bucket_ready(on_bucket);
  if (on_slice) next.reducer->on_slice_ready(on_slice);
  std::swap(parts, next);
  steps_before = done;
  owner->reducer_ = parts.reducer.get();
  owner->zero_gradients();  // in the program's memory they are what the broken step has left
  if (skip.view().data != nullptr) zero_fill(skip, *options.compute_stream);  // updates may read it at once
  if (adapter) adapter->go_on();
}

void AutogradSupport::follow_world(Following follows) { ddp_->engine_->adapter = std::move(follows); }

void DistributedDataParallel::set_comm_hook(CommHook hook) {
  reducer_->set_comm_hook(hook);
  engine_->hook = std::move(hook);
}

void DistributedDataParallel::on_bucket_ready(BucketReady update) {
  reducer_->on_bucket_ready(update);
  engine_->on_bucket = std::move(update);
}

void DistributedDataParallel::on_slice_ready(SliceReady update) {
  reducer_->on_slice_ready(update);
  engine_->on_slice = std::move(update);
}

void DistributedDataParallel::mark_buffer_dirty(std::size_t index) { engine_->parts.buffers->mark(index); }

void DistributedDataParallel::mark_buffers_dirty() { engine_->parts.buffers->mark_all(); }

void DistributedDataParallel::sync_buffers() {
  reducer_->between_steps("sync_buffers()", [this](auto lanes) {
    engine_->parts.buffers->send(lanes, reducer_->is_recording());
  });
}

std::span<NamedTensor const> DistributedDataParallel::buffers() const noexcept {
  return engine_->parts.buffers->buffers();
}

void DistributedDataParallel::compute_on(Stream& stream) {
  reducer_->compute_on(stream);
  if (stream.device() == engine_->world.device()) engine_->options.compute_stream = &stream;
}

// Before the step is complete: this rank has done one step less then than those that have completed it.
void DistributedDataParallel::settle_last_step() {
  if (auto const why = engine_->world.control().interruption()) throw CommError(*why);
  WorldState const& state = WorldAccess::state(engine_->world);
  if (!state.communicator_options.commits) return;
  reducer_->await_commits();
  state.each_host_values(&HostValues::keep);
}

void DistributedDataParallel::synchronize() {
  settle_last_step();
  reducer_->synchronize();
  report_progress();
}

void DistributedDataParallel::join(std::function<void()> const& update,
                                   std::function<void()> const& before_step) {
  if (!update) return reducer_->join(update, before_step);  // which refuses it
  reducer_->join(
      [&] {
        report_progress();
        update();
      },
      [&] {
        settle_last_step();
        if (before_step) before_step();
      });
}

std::optional<StepStatistics> DistributedDataParallel::statistics() const {
  if (engine_->parts.statistics) return engine_->parts.statistics->newest();
  throw Error(
      ErrorCode::invalid_state,
      "statistics(): steps are not measured; set Options::statistics on every rank, or DDP_STATISTICS to a "
      "folder");
}

// To the launcher once a second at most; without memory of its own, since steps allocate nothing.
void DistributedDataParallel::report_progress() {
  std::uint64_t const steps = this->steps();
  if (steps == 0) return;
  flight_recorder().say_steps(steps);
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  if (now < engine_->next_report.load()) return;
  engine_->next_report = now + kBetweenReports;
  Progress progress{steps};
  if (engine_->parts.statistics) {
    progress.pace = engine_->parts.statistics->take_pace();
    engine_->parts.statistics->flush();
  }
  engine_->world.control().report_progress(progress);
}

std::uint64_t DistributedDataParallel::steps() const {
  return engine_->steps_before + engine_->parts.reducer->steps();
}

DistributedDataParallel::~DistributedDataParallel() { leave_to_maker(engine_); }
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&& other) noexcept
    : engine_(std::move(other.engine_)), reducer_(std::exchange(other.reducer_, nullptr)) {
  if (engine_) engine_->owner = this;
}

DistributedDataParallel& DistributedDataParallel::operator=(DistributedDataParallel&& other) noexcept {
  reducer_ = std::exchange(other.reducer_, nullptr);
  engine_ = std::move(other.engine_);
  if (engine_) engine_->owner = this;
  return *this;
}

}  // namespace ddp

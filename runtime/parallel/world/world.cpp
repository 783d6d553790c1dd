#include "ddp/parallel/world.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "comm/communicator_backend.hpp"
#include "comm/step_commits.hpp"
#include "comm/tracing_communicator.hpp"
#include "core/parse_number.hpp"
#include "core/system/absolute_path.hpp"
#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/device_guard.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/random.hpp"
#include "ddp/device/sm_partition.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "device/cuda/backend.hpp"
#include "device/info/api_call.hpp"
#include "device/registry/cuda_visible_devices.hpp"
#include "device/registry/device_registry.hpp"
#include "device/registry/gpu_id.hpp"
#include "device/registry/misspelt_variables.hpp"
#include "observe/flight_recorder.hpp"
#include "parallel/world/terminate_report.hpp"
#include "parallel/world/world_state.hpp"

namespace ddp {
namespace {

// The program's mistakes. Before the environment is read: its user can neither make nor hide them.
void check_options(WorldOptions const& options) {
  require(options.comm_sms >= 0,
          text("WorldOptions: comm_sms is ", options.comm_sms, ", expected 0 or more"));
  require(options.timeout.count() > 0 && options.init_timeout.count() > 0,
          "WorldOptions: timeouts must be positive");
}

// A duration in seconds from the environment, or the default.
std::chrono::milliseconds seconds_from(char const* variable, std::chrono::milliseconds otherwise) {
  char const* const given = std::getenv(variable);
  if (given == nullptr) return otherwise;
  auto const value = parse_number<double>(given);
  require(value && *value >= 0.001 && *value < 1e9,
          text(variable, "=", given, ": expected a number of seconds, 0.001 or more"));
  return std::chrono::milliseconds(static_cast<std::int64_t>(*value * 1000.0));
}

// Wrappers that are made after a chdir() write into the same folder.
WorldOptions with_absolute_folders(WorldOptions options) {
  options.trace = absolute_path(options.trace);
  options.statistics = absolute_path(options.statistics);
  return options;
}

WorldOptions with_environment(WorldOptions options) {
  options.timeout = seconds_from("DDP_TIMEOUT", options.timeout);
  options.init_timeout = seconds_from("DDP_INIT_TIMEOUT", options.init_timeout);
  if (char const* const backend = std::getenv("DDP_BACKEND")) options.backend = backend;
  if (char const* const trace = std::getenv("DDP_TRACE")) options.trace = trace;
  if (char const* const folder = std::getenv("DDP_STATISTICS")) options.statistics = folder;
  if (char const* const sms = std::getenv("DDP_COMM_SMS")) {
    auto const number = parse_number<int>(sms);
    require(number && *number >= 0, text("DDP_COMM_SMS=", sms, ": expected a whole number, 0 or more"));
    options.comm_sms = *number;
  }
  return with_absolute_folders(std::move(options));
}

// Training on the CPU where GPUs were named would be a slow surprise. Ids come from ddp-launch, or from
// somebody who means these GPUs; indices may have been left in the environment.
void miss_named_gpus(LocalRank rank) {
  char const* const given = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string const visible = given == nullptr ? "" : given;
  if (!names_gpus(visible)) return;
  std::string const reason = cuda::why_no_devices();
  if (reason.empty()) return;
  std::string const what = text(
      "CUDA finds none of the GPUs that this rank was given, CUDA_VISIBLE_DEVICES=", visible, ": ", reason,
      "; ddp-launch --check looks at the driver; ranks on the CPU: ddp-launch --cpus N, or "
      "CUDA_VISIBLE_DEVICES=");
  if (is_device_id(visible)) throw Error(ErrorCode::not_found, what);
  if (rank == LocalRank{0}) log(LogLevel::warning, text("ranks compute on the CPU: ", what));
}

// The GPU with this rank's local number, if there are GPUs (L2, L5).
Device device_of(RankInfo const& info) {
  auto const gpus = logical_devices();
  if (gpus.empty()) {
    miss_named_gpus(info.local_rank);
    if (log_enabled(LogLevel::info)) {
      log(LogLevel::info, text("rank ", info.rank, " computes on ", Device{}, ": ",
                               DeviceRegistry::of_process().describe_gpus()));
    }
    return Device{};
  }
  if (gpus.size() == 1 && info.local_size > 1) {
    log(LogLevel::info, text("local rank ", info.local_rank, " of ", info.local_size,
                             " sees one GPU and uses it: ", gpus[0].device));
    return gpus[0].device;
  }
  auto const index = info.local_rank.index();
  if (index >= gpus.size()) {
    throw Error(ErrorCode::not_found,
                text("no GPU for local rank ", info.local_rank, ": ", info.local_size,
                     " ranks run on this host, and this one sees ", gpus.size(),
                     " logical devices; start one rank a GPU, or CPU ranks with CUDA_VISIBLE_DEVICES= "
                     "(ddp-launch --gpus, --cpus and --virtual do either)"));
  }
  return gpus[index].device;
}

// The program's own stream (WorldOptions::stream); null where it has none.
std::shared_ptr<Stream> own_stream(WorldOptions const& options, Device device) {
  std::shared_ptr<Stream> own = options.stream ? options.stream(device) : nullptr;
  if (!own) return nullptr;
  require(own->device() == device, [&] {
    return text("WorldOptions::stream: expected a stream of ", device,
                ", which this rank computes on, found ", "one of ", own->device(),
                "; make it for the device that the function is given");
  });
  require(device.kind == DeviceKind::cuda || host_stream(*own).is_inline(),
          "WorldOptions::stream: on a CPU the World computes in the calling thread, and this stream has a "
          "thread of its own; return null for a CPU");
  require(device.kind == DeviceKind::cpu || options.comm_sms == 0,
          "WorldOptions: expected stream or comm_sms (DDP_COMM_SMS), found both: with comm_sms the World "
          "makes the stream, on the SMs that are left for computing; leave one of them out");
  return own;
}

CommunicatorOptions timeouts_of(WorldOptions const& options, char const* setting) {
  return {.timeout = options.timeout, .init_timeout = options.init_timeout, .timeout_setting = setting};
}

std::shared_ptr<ChromeTrace> make_trace(WorldOptions const& options, Rank rank, Device device) {
  if (options.trace.empty()) return nullptr;
  return std::make_shared<ChromeTrace>(options.trace, rank, text("rank ", rank, " (", device, ")"));
}

// Called when the World is destroyed. ddp-launch must learn whether a failure began in this rank; where an
// exception is the reason, it must learn that now: ranks that only followed may end before the program has
// handled the exception.
void report_failure(ControlPlane& control, Communicator const& communicator, bool by_exception) noexcept {
  try {
    communicator.check_health();
    if (by_exception) control.report_failure(Error(ErrorCode::invalid_state, "an exception ended this rank"));
  } catch (std::exception const& error) {
    control.report_failure(error);
  }
}

// The time since it was made, or since the last take().
class Lap {
 public:
  [[nodiscard]] std::chrono::nanoseconds take() {
    auto const now = std::chrono::steady_clock::now();
    return now - std::exchange(begin_, now);
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::string describe(StartTimes const& times) {
  auto const milliseconds = [](auto time) { return std::chrono::duration<double, std::milli>(time).count(); };
  return text("ready after ", milliseconds(times.control), " ms for the control plane, ",
              milliseconds(times.device), " for the device, ", milliseconds(times.communicator),
              " for the backend");
}

}  // namespace

WorldState::~WorldState() {
  if (parent) --parent->subgroups;
  bool const failed = std::uncaught_exceptions() > exceptions_at_start;
  bool const is_last_word = failed || !parent;  // a program may go on without a sub-group that failed
  if (is_last_word && control && communicator) report_failure(*control, *communicator, failed);
  if (failed && communicator) {  // nobody is waited for
    communicator->abort("an exception ended this rank");
    abort_spares("an exception ended this rank");
  }
  std::ranges::sort(spares, {}, [](SpareLane const& each) {  // ranks end them together
    return std::pair(std::string_view(each.maker), each.communicator->device().kind);
  });
  spares.clear();
  communicator.reset();
  // A sub-group's parent leaves later, and a failed rank's exit must count as a failure.
  if (!parent && !failed && control) control->leave();
}

std::unique_ptr<Communicator> WorldState::connect(std::string const& prefix,
                                                  std::vector<Rank> const& ranks) const {
  CommunicatorOptions own = communicator_options;
  own.backend = options.backend;
  if (partition) own.comm_sms = partition->communication_sms();
  return TracingCommunicator::wrap(make_communicator(control, prefix, ranks, device, own), trace);
}

World World::init(WorldOptions options) {
  ApiCall const call("World::init()");
  check_options(options);
  RankInfo const info = read_environment([] { return RankInfo::from_environment(); });
  return start(
      info, [&](Deadline deadline) { return connect_control_plane(info, deadline); }, std::move(options));
}

World World::over(Connect const& connect, WorldOptions options) {
  ApiCall const call("World::over()");
  check_options(options);
  RankInfo info;
  info.source = RankSource::program;
  info.local_known = false;
  return start(info, connect, std::move(options));
}

World World::start(RankInfo info, Connect const& connect, WorldOptions options) {
  warn_of_misspelt_variables();
  options = read_environment([&] { return with_environment(options); });
  auto state = WorldState::make();
  state->options = options;
  Lap lap;
  state->control = connect(Deadline::after(options.init_timeout));
  require(state->control != nullptr, "World::over(): expected a control plane, found none");
  if (info.source == RankSource::program) {
    info.rank = state->control->rank();
    info.size = info.local_size = state->control->size();
    info.local_rank = LocalRank{info.rank.value()};
  }
  state->info = info = state->control->completed(info);
  state->start_times.control = lap.take();
  report_uncaught_exceptions_to(state->control);
  state->device = read_environment([&] { return device_of(info); });
  set_device(state->device);
  set_random_rank(info.rank);
  state->stream = own_stream(options, state->device);
  if (!state->stream && options.comm_sms > 0 && state->device.kind == DeviceKind::cuda) {
    state->partition = std::make_shared<SmPartition const>(state->device, options.comm_sms);
    state->stream = state->partition->make_compute_stream();
  }
  if (!state->stream) state->stream = make_compute_stream(state->device);
  state->start_times.device = lap.take();
  state->newcomer = info.replacement > 0;
  if (state->newcomer) {
    state->name = text("ddp/+", info.rank, ".", info.replacement);
    state->take_members({info.rank}, Rank{0});
  } else {
    state->name = "ddp";
    state->take_members(state->control->everyone(), info.rank);
  }
  state->trace = make_trace(options, info.rank, state->device);
  state->communicator_options = timeouts_of(options, "DDP_TIMEOUT");
  if (info.survives && state->device.kind == DeviceKind::cuda) {
    state->communicator_options.commits = std::make_shared<StepCommits>();
  }
  auto const make = [&] { return state->connect(state->name, state->members); };
  bool const by_environment = std::getenv("DDP_BACKEND") != nullptr;
  state->communicator = by_environment ? read_environment(make) : make();
  backend_of(*state->communicator).record_as("world");
  state->start_times.communicator = lap.take();
  log(LogLevel::info, text("rank ", info.rank, " of ", info.size, " (", to_string(info.source), ") on ",
                           state->device, state->newcomer ? ", in the place of a lost process" : "",
                           ", backend ", state->communicator->backend(), ", ", describe(state->start_times)));
  return World(std::move(state));
}

std::vector<World> World::in_process(int size, WorldOptions const& options) {
  require(size >= 1, text("World::in_process: a world has at least one rank, ", size, " asked for"));
  auto const control = make_in_process_control(size);
  CommunicatorOptions const timeouts = timeouts_of(options, "WorldOptions::timeout");
  CommunicatorOptions with_backend = timeouts;
  with_backend.backend = options.backend;
  auto communicators = make_in_process_communicators(size, with_backend, control);
  std::vector<World> worlds;
  for (int r = 0; r < size; ++r) {
    auto const index = static_cast<std::size_t>(r);
    auto state = WorldState::make();
    state->info.rank = Rank{r};
    state->info.local_rank = LocalRank{r};
    state->info.size = state->info.local_size = size;
    state->options = with_absolute_folders(options);
    state->communicator_options = timeouts;
    state->control = control[index];
    state->name = "ddp";
    state->take_members(control[index]->everyone(), Rank{r});
    if (auto own = own_stream(options, state->device)) state->stream = std::move(own);
    state->trace = make_trace(options, Rank{r}, state->device);
    state->communicator = TracingCommunicator::wrap(std::move(communicators[index]), state->trace);
    worlds.push_back(World(std::move(state)));
  }
  return worlds;
}

Rank World::rank() const noexcept { return state_->place->rank; }
int World::size() const noexcept { return state_->place->size; }
int World::membership() const noexcept { return state_->membership; }
bool World::is_newcomer() const noexcept { return state_->newcomer; }
LocalRank World::local_rank() const noexcept { return state_->info.local_rank; }
int World::local_size() const noexcept { return state_->info.local_size; }
Device World::device() const noexcept { return state_->device; }
Communicator& World::communicator() const { return *state_->communicator; }
Stream& World::stream() const { return *state_->stream; }
int World::compute_sms() const noexcept {
  if (state_->partition) return state_->partition->compute_sms();
  return device().kind == DeviceKind::cuda ? logical_device(device()).sms : 0;
}
std::unique_ptr<Stream> World::make_comm_stream(Device device) const {
  SmPartition const* const aside = state_->partition_of(device);
  return aside != nullptr ? aside->make_comm_stream() : ddp::make_comm_stream(device);
}
ControlPlane& World::control() const { return *state_->control; }
std::shared_ptr<ControlPlane> World::shared_control() const { return state_->control; }
std::span<Rank const> World::members() const noexcept { return state_->members; }
std::shared_ptr<ChromeTrace> const& World::trace() const noexcept { return state_->trace; }
WorldOptions const& World::options() const noexcept { return state_->options; }
CommunicatorOptions const& World::communicator_options() const noexcept {
  return state_->communicator_options;
}
StartTimes const& World::start_times() const noexcept { return state_->start_times; }
std::string World::next_name(std::string_view what) {
  return text(state_->name, "/", what, state_->next_object++);
}

double World::all_reduce_scalar(double value, ReduceOp op) const {
  TensorView const here = view_of(std::span(&value, 1));
  if (device().kind == DeviceKind::cpu) {
    TensorView there = here;
    there.device = device();
    communicator().all_reduce(there, op, stream());
    stream().synchronize();
    return value;
  }
  Tensor const there = zeros({1}, DType::f64, device());
  copy_elements(there, here, stream());
  communicator().all_reduce(there, op, stream());
  copy_elements(here, there, stream());
  stream().synchronize();
  return value;
}

void World::barrier() const {
  try {
    static_cast<void>(state_->control->all_gather(text(state_->name, "/barrier"), {}, state_->members,
                                                  Deadline::after(state_->options.timeout)));
  } catch (CommError const& error) {
    std::uint64_t const steps = flight_recorder().steps();
    if (error.code() != ErrorCode::timeout || steps == 0) throw;
    Failure failure = error.failure();
    failure.detail +=
        text("; rank ", rank(), " came here after ", steps,
             " steps: if others have more data, set DistributedDataParallel::Options::uneven and call "
             "join() behind the loop on every rank, or go on with set_weight(0)");
    throw CommError(failure);
  }
}

std::optional<World> World::subgroup(std::span<Rank const> ranks) {
  std::string name = text(state_->name, ".", state_->next_object++, "-");
  if (!ranks.empty()) name += text(ranks.front());  // of several groups that are made at once
  auto communicator = state_->communicator->split(ranks, name);
  if (!communicator) return std::nullopt;
  auto state = WorldState::make();
  state->info = state_->info;
  state->options = state_->options;
  state->communicator_options = state_->communicator_options;
  state->device = state_->device;
  state->stream = state_->stream;
  state->partition = state_->partition;
  state->control = state_->control;
  state->trace = state_->trace;
  state->parent = state_;
  ++state_->subgroups;
  std::vector<Rank> members;
  for (Rank const rank : ranks) members.push_back(state_->members[rank.index()]);
  state->take_members(std::move(members), communicator->rank());
  state->membership = state_->membership;
  state->name = std::move(name);
  state->communicator = std::move(communicator);
  return World(std::move(state));
}

}  // namespace ddp

#include "data_parallel_bench.hpp"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <set>
#include <string>

#include "data_parallel_paths.hpp"
#include "ddp/bootstrap/rank_info.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ranks.hpp"
#include "report.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

constexpr std::size_t kRefreshes = 5;  // of one measurement

DataParallelSizes sizes_of(DataParallelBenchOptions const& options, DeviceKind kind) {
  bool const gpu = kind == DeviceKind::cuda;
  return {options.layers, options.width.value_or(gpu ? 3072 : 64), options.rows.value_or(gpu ? 8192 : 16)};
}

std::vector<Device> chosen_devices(DataParallelBenchOptions const& options) {
  auto const gpus = list_logical_devices(DeviceKind::cuda);
  bool const on_cpu = options.cpus || gpus.empty();
  if (on_cpu) {
    VirtualDevices cut{.kind = DeviceKind::cpu};
    cut.limits.resize(options.cpus.value_or(2));
    set_logical_devices(cut);
  }
  std::vector<Device> all;
  for (LogicalDevice const& each : list_logical_devices(on_cpu ? DeviceKind::cpu : DeviceKind::cuda))
    all.push_back(each.device);
  return all;
}

bool share_a_card(std::vector<Device> const& devices) {
  std::set<GpuId> cards;
  for (Device const device : devices) cards.insert(logical_device(device).uuid);
  return devices.front().kind == DeviceKind::cuda && cards.size() < devices.size();
}

double step_ms(TrainingPath& path, std::size_t steps) {
  return path.milliseconds([&] {
    for (std::size_t i = 0; i < steps; ++i) path.step();
  }) / static_cast<double>(steps);
}

DataParallelRow row_of(DataParallelSizes const& sizes, char const* path, std::size_t devices, Bytes bytes) {
  return {path, devices, sizes.layers, sizes.width, sizes.rows, bytes, 0, {}, {}};
}

double broadcast_ms(PlainBroadcast& broadcast) {
  broadcast.wait();
  auto const begin = std::chrono::steady_clock::now();
  broadcast.run(kRefreshes);
  broadcast.wait();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(kRefreshes);
}

DataParallelRow measure_alone(DataParallelBenchOptions const& options, std::vector<Device> const& devices) {
  DataParallelSizes const sizes = sizes_of(options, devices.front().kind);
  DataParallelPath path(sizes, devices);
  DataParallelRow row = row_of(sizes, "DataParallel", devices.size(), path.parameters());
  static_cast<void>(step_ms(path, 2));  // makes memory, connects
  std::vector<double> ms;
  for (std::size_t round = 0; round < options.rounds; ++round) ms.push_back(step_ms(path, options.steps));
  row.step_ms = median(ms);
  if (devices.size() == 1 || share_a_card(devices)) return row;  // no broadcast to compare with
  PlainBroadcast broadcast(devices, row.parameters);
  static_cast<void>(broadcast_ms(broadcast));
  std::vector<double> refreshes;
  std::vector<double> broadcasts;
  auto const refresh = [&] {
    refreshes.push_back(path.milliseconds([&] {
      for (std::size_t i = 0; i < kRefreshes; ++i) path.refresh();
    }) / static_cast<double>(kRefreshes));
  };
  for (std::size_t round = 0; round < options.rounds; ++round) {
    if (round % 2 == 0) refresh();
    broadcasts.push_back(broadcast_ms(broadcast));
    if (round % 2 != 0) refresh();
  }
  row.refresh_ms = median(refreshes);
  row.broadcast_ms = median(broadcasts);
  return row;
}

DataParallelRow measure_ranks(DataParallelBenchOptions const& options, World const& world) {
  DataParallelSizes const sizes = sizes_of(options, world.device().kind);
  DistributedPath path(sizes, world);
  DataParallelRow row =
      row_of(sizes, "DistributedDataParallel", static_cast<std::size_t>(world.size()), path.parameters());
  static_cast<void>(step_ms(path, 3));  // makes memory, connects, settles the buckets
  std::vector<double> ms;
  for (std::size_t round = 0; round < options.rounds; ++round) {
    world.barrier();
    ms.push_back(step_ms(path, options.steps));
  }
  row.step_ms = median(slowest_rank(world, ms));
  return row;
}

void report(Circumstances const& where, DataParallelRow const& row, std::string const& json) {
  print_header(std::cout, "data-parallel", where);
  print(std::cout, row);
  print_clocks(std::cout, where);
  if (!json.empty()) write_file(json, to_json(where, row));
}

}  // namespace

void run_data_parallel(DataParallelBenchOptions const& options) {
  if (RankInfo::from_environment().source != RankSource::alone) {
    require(!options.cpus, "--cpus is for one process; ddp-launch --cpus N starts N ranks");
    World const world = World::init();
    if (!options.json.empty()) succeed_on_root(world, "json", [&] { check_writable(options.json); });
    DataParallelRow const row = measure_ranks(options, world);
    if (world.rank() != 0) return;
    Circumstances where =
        circumstances(std::string(world.communicator().backend()), world.size(), world.device());
    where.gpu_clocks = gpu_clocks(world.device());
    report(where, row, options.json);
    return;
  }
  if (!options.json.empty()) check_writable(options.json);
  auto const devices = chosen_devices(options);
  DataParallelRow const row = measure_alone(options, devices);
  Circumstances where = circumstances("one process", static_cast<int>(devices.size()), devices.front());
  where.gpu_clocks = gpu_clocks(devices.front());
  report(where, row, options.json);
}

}  // namespace ddp::bench

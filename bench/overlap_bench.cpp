#include "overlap_bench.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>

#include "ddp/core/text.hpp"
#include "ddp/device/logical_device.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ddp/parallel/distributed_data_parallel.hpp"
#include "gemm_chain.hpp"
#include "ranks.hpp"
#include "report.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

enum class Kind { compute, communication, overlapped, one_by_one };
constexpr std::array kKinds{Kind::compute, Kind::communication, Kind::overlapped, Kind::one_by_one};

constexpr std::size_t kStepsPerBatch = 3;
constexpr std::size_t kStagingBytes = (16_MiB).value;

GemmChain::Sizes sizes_of(OverlapOptions const& options, Device device) {
  std::size_t const width = options.width.value_or(device.kind == DeviceKind::cpu ? 256 : 4096);
  return {options.layers, width, options.dtype};
}

// A bucket of several layers would leave little to overlap in a small model.
DistributedDataParallelOptions reducer_options(OverlapOptions const& options, GemmChain::Sizes const& sizes) {
  DistributedDataParallelOptions reducer;
  Bytes const layer{sizes.width * sizes.width * size_of(sizes.dtype)};
  reducer.bucket_bytes = options.bucket.value_or(std::min(reducer.bucket_bytes, layer));
  reducer.first_bucket_bytes = std::min(reducer.first_bucket_bytes, reducer.bucket_bytes);
  return reducer;
}

class OverlapBench {
 public:
  OverlapBench(World const& world, OverlapOptions const& options)
      : world_(world),
        options_(options),
        sizes_(sizes_of(options, world.device())),
        model_(sizes_, world.device(), world.rank(), world.stream()),
        ddp_(world, model_.parameters(), reducer_options(options, sizes_)),
        alone_(on_gpu() && options.comm_sms > 0 ? make_compute_stream(world.device()) : nullptr),
        timer_(world_, world.stream()),
        staging_(pinned_zeros(Shape{kStagingBytes}, DType::u8)) {
    rows_ = options.rows.value_or(some_rows());
    model_.set_rows(rows_);
    for (Kind const kind : kKinds) run(kind);  // warms up, and settles the buckets
    run(Kind::overlapped);
    if (!options.rows && world.size() > 1) choose_rows();
  }

  [[nodiscard]] OverlapResult measure() {
    std::array<std::vector<double>, kKinds.size()> ms;
    for (Kind const kind : kKinds) static_cast<void>(batch_ms(kind));
    for (std::size_t round = 0; round < options_.rounds; ++round) {
      for (std::size_t i = 0; i < kKinds.size(); ++i) {
        std::size_t const kind = round % 2 == 0 ? i : kKinds.size() - 1 - i;
        ms[kind].push_back(batch_ms(kKinds[kind]));
      }
    }
    auto const time_of = [&](Kind kind) {
      return median(slowest_rank(world_, ms[static_cast<std::size_t>(kind)]));
    };
    OverlapResult result{sizes_.layers, sizes_.width, rows_, sizes_.dtype, {}, ddp_.messages()};
    for (Parameter const& parameter : ddp_.parameters()) result.gradients.value += parameter.value.bytes();
    if (alone_) {
      result.compute_sms = world_.compute_sms();
      result.comm_sms = logical_device(world_.device()).sms - result.compute_sms;
    }
    result.compute_ms = time_of(Kind::compute);
    result.communication_ms = time_of(Kind::communication);
    result.overlapped_ms = time_of(Kind::overlapped);
    result.one_by_one_ms = time_of(Kind::one_by_one);
    return result;
  }

  // What is wrong with the gradients, on any rank; "" if nothing is. Were a bucket sent before its gradients
  // are written, the two kinds of step would differ; were it not sent, the ranks would.
  [[nodiscard]] std::string check() {
    std::vector<std::uint64_t> found;
    for (Kind const kind : {Kind::overlapped, Kind::one_by_one}) {
      run(kind, world_.stream(), nullptr);  // with other SMs, sums may be in another order
      found.push_back(hash_of_gradients());
    }
    auto const all = gather(world_, "hashes", join(found, " and "));
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r] != all[0]) return text("the gradients of rank ", r, " are not bit-equal to those of rank 0");
    }
    if (found[0] != found[1]) return "gradients of overlapped steps differ from those of steps one by one";
    return "";
  }

  void trace_steps() {
    if (!world_.trace()) return;
    SpanRecorder recorder(world_.trace(), "compute", world_.device());
    world_.trace()->record(true);
    for (Kind const kind : {Kind::overlapped, Kind::overlapped, Kind::one_by_one}) {
      world_.communicator().barrier(world_.stream());
      world_.stream().synchronize();
      char const* const what = kind == Kind::overlapped ? "step, overlapped" : "step, one by one";
      ScopedSpan const step(&recorder, world_.stream(), {.what = what, .category = "step"});
      model_.forward(&recorder);
      run(kind, &recorder);
    }
    world_.stream().synchronize();
    world_.trace()->record(false);
  }

 private:
  // Fast enough for a first measurement, large enough to say something.
  [[nodiscard]] std::size_t some_rows() const { return on_gpu() ? 2048 : 16; }
  [[nodiscard]] bool on_gpu() const { return world_.device().kind == DeviceKind::cuda; }

  void run(Kind kind, SpanRecorder* recorder = nullptr) {
    run(kind, kind == Kind::overlapped ? world_.stream() : alone_stream(), recorder);
  }

  // `products`: what they run on.
  void run(Kind kind, Stream& products, SpanRecorder* recorder) {
    auto const mark = [this](std::size_t parameter) { ddp_.gradient_ready(parameter); };
    auto const nothing = [](std::size_t) {};
    if (kind != Kind::communication) {
      bool const apart = &products != &world_.stream();
      if (apart) products.wait(world_.stream());
      model_.move_to(products, apart ? 0 : world_.compute_sms());
      model_.backward(kind == Kind::overlapped ? std::function<void(std::size_t)>(mark) : nothing, recorder);
      if (apart) world_.stream().wait(products);
    }
    if (kind == Kind::compute) return;
    if (kind != Kind::overlapped) {
      for (std::size_t layer = sizes_.layers; layer-- > 0;) mark(layer);
    }
    ddp_.synchronize();
  }

  // Products that nothing runs beside have the whole GPU.
  [[nodiscard]] Stream& alone_stream() const { return alone_ ? *alone_ : world_.stream(); }

  // Milliseconds of one step, on this rank.
  [[nodiscard]] double batch_ms(Kind kind) {
    auto const batch = [&] {
      for (std::size_t i = 0; i < kStepsPerBatch; ++i) run(kind);
    };
    return timer_.milliseconds(batch) / static_cast<double>(kStepsPerBatch);
  }

  // The slowest rank's, the same number on every rank.
  [[nodiscard]] double usual_ms(Kind kind) {
    std::vector<double> ms;
    for (int i = 0; i < 5; ++i) ms.push_back(batch_ms(kind));
    return median(slowest_rank(world_, ms));
  }

  // The time of a product grows with its rows, about in proportion.
  void choose_rows() {
    constexpr int kTries = 4;
    constexpr double kCloseEnough = 0.03;
    std::size_t const unit = on_gpu() ? 64 : 1;  // whole tiles
    std::size_t const most = on_gpu() ? 32768 : 4096;
    double const communication = usual_ms(Kind::communication);
    for (int i = 0; i < kTries; ++i) {
      double const ratio = communication / usual_ms(Kind::compute);
      if (std::abs(ratio - 1) < kCloseEnough) return;
      auto const units = static_cast<std::size_t>(
          std::lround(static_cast<double>(rows_) * ratio / static_cast<double>(unit)));
      std::size_t const rows = std::clamp(units * unit, unit, most);
      if (rows == rows_) return;
      rows_ = rows;
      model_.set_rows(rows_);
      run(Kind::compute);
    }
  }

  [[nodiscard]] std::uint64_t hash_of_gradients() {
    std::uint64_t hash = 0;
    auto const host = staging_.as<std::uint8_t>();
    for (TensorView const& gradient : model_.gradients()) {
      TensorView const bytes{gradient.data, Shape{gradient.bytes()}, DType::u8, gradient.device};
      for (std::size_t at = 0; at < bytes.count(); at += host.size()) {
        std::size_t const count = std::min(host.size(), bytes.count() - at);
        copy_elements(view_of(host.first(count)), slice(bytes, at, count), world_.stream());
        world_.stream().synchronize();
        for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
          std::uint64_t word = 0;
          std::memcpy(&word, &host[i], std::min(sizeof(word), count - i));
          hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
          hash ^= hash >> 32;
        }
      }
    }
    return hash;
  }

  World world_;
  OverlapOptions options_;
  GemmChain::Sizes sizes_;
  GemmChain model_;
  DistributedDataParallel ddp_;
  std::unique_ptr<Stream> alone_;  // null: the world's stream has the whole GPU
  StreamTimer timer_;
  Tensor staging_;
  std::size_t rows_ = 0;
};

}  // namespace

bool run_overlap(World const& world, OverlapOptions const& options) {
  bool const root = world.rank() == 0;
  if (!options.json.empty()) succeed_on_root(world, "open", [&] { check_writable(options.json); });
  if (world.trace()) world.trace()->record(false);  // until it is about the steps that are traced
  Circumstances where =
      circumstances(std::string(world.communicator().backend()), world.size(), world.device());
  if (root) print_header(std::cout, "overlap", where);

  OverlapBench bench(world, options);
  std::string problem = bench.check();
  std::optional<OverlapResult> result;
  if (problem.empty()) {
    result = bench.measure();
    if (root) where.gpu_clocks = gpu_clocks(world.device());
    problem = bench.check();
  }
  if (!problem.empty()) {
    std::cerr << "ddp-bench: wrong result: " << problem << '\n';
    return false;
  }
  bench.trace_steps();
  if (root) {
    print(std::cout, *result, world.size());
    print_clocks(std::cout, where);
    if (world.trace()) {
      std::cout << "timelines of 3 steps: " << world.trace()->file().parent_path().string()
                << "; merge them with: ddp-bench merge-traces FOLDER\n";
    }
  }
  if (!options.json.empty()) {
    succeed_on_root(world, "write", [&] { write_file(options.json, to_json(where, *result)); });
  }
  return true;
}

}  // namespace ddp::bench

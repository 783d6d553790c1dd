#include "all_reduce_bench.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iostream>
#include <thread>

#include "comm/communicator_backend.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "gpu.hpp"
#include "mpi_all_reduce.hpp"
#include "ranks.hpp"
#include "report.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

// What is timed in every round.
struct Contender {
  std::function<void()> run;
  std::optional<double> AllReduceRow::*time;       // where its time goes; null for AllReduceRow::us
  std::optional<double> AllReduceRow::*host_time;  // and the host's; null if that says nothing
  std::vector<double> us{};
  std::vector<double> host_us{};
};

class AllReduceBench {
 public:
  AllReduceBench(World const& world, AllReduceOptions const& options)
      : world_(world),
        on_gpu_(world.device().kind == DeviceKind::cuda),
        rounds_(options.rounds),
        stream_(on_gpu_ ? world.make_comm_stream(world.device()) : make_compute_stream(world.device())),
        timer_(world_, *stream_),
        data_(world.communicator().allocate(largest(options, world.device()))),
        copy_(on_gpu_ ? Tensor() : world.communicator().allocate(largest(options, world.device()))),
        staging_(
            pinned_zeros(Shape{std::min(data_.view().bytes(), kStagingBytes) / sizeof(float)}, DType::f32)),
        plain_(on_gpu_ ? make_plain_all_reduce(world) : make_mpi_all_reduce(world)) {
    if (on_gpu_) {
      in_rank_order_ = world.communicator().split(all_ranks(world.size()));
      backend_of(*in_rank_order_).combine_in_rank_order();
    }
    for (std::size_t r = 0; r < ranks(); ++r) {
      for (std::size_t i = 0; i < kPeriod; ++i) sums_[i] += value(i, r);
    }
  }

  [[nodiscard]] AllReduceRow measure(Bytes bytes) {
    std::size_t const repeats =
        std::clamp((plain_ && on_gpu_ ? kNcclBytesPerBatch : kBytesPerBatch) / bytes.value, std::size_t{1},
                   on_gpu_ && !plain_ ? kShortQueue : kMostRepeats);
    TensorView const elements = floats(bytes);
    std::vector<Contender> contenders;
    contenders.push_back({[&] { world_.communicator().all_reduce(elements, ReduceOp::sum(), *stream_); },
                          nullptr, &AllReduceRow::host_us});
    if (plain_) {
      contenders.push_back(
          {[&] { plain_->sum(elements, *stream_); }, &AllReduceRow::raw_us, &AllReduceRow::raw_host_us});
    }
    if (in_rank_order_) {
      contenders.push_back({[&] { in_rank_order_->all_reduce(elements, ReduceOp::sum(), *stream_); },
                            &AllReduceRow::in_rank_order_us, nullptr});
    }
    if (!on_gpu_) {
      contenders.push_back({[&] { std::memcpy(copy_.view().data, elements.data, bytes.value); },
                            &AllReduceRow::memcpy_us, nullptr});
    }
    bool const host_too = plain_ && on_gpu_ && bytes <= kHostTimed;

    // Zeros, so that repeated sums stay finite. The first batches warm up and do not count.
    zero_fill(elements, *stream_);
    for (Contender& contender : contenders) static_cast<void>(batch_us(contender, repeats));
    for (std::size_t round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        Contender& contender = contenders[round % 2 == 0 ? i : contenders.size() - 1 - i];
        contender.us.push_back(batch_us(contender, repeats));
        if (host_too && contender.host_time != nullptr) contender.host_us.push_back(host_us(contender));
      }
    }

    AllReduceRow row;
    row.bytes = bytes;
    for (Contender const& contender : contenders) {
      double const us = median(slowest_rank(world_, contender.us));
      if (contender.time != nullptr) {
        row.*contender.time = us;
      } else {
        row.us = us;
      }
      if (!contender.host_us.empty())
        row.*contender.host_time = median(slowest_rank(world_, contender.host_us));
    }
    return row;
  }

  // What is wrong with the sum of known numbers, on any rank; "" if nothing is.
  [[nodiscard]] std::string check(Bytes bytes) {
    TensorView const elements = floats(bytes);
    std::size_t const mine = world_.rank().index();
    ++salt_;
    in_pieces(elements, [&](std::size_t first, TensorView const& piece, std::span<float> staging) {
      for (std::size_t i = 0; i < staging.size(); ++i) staging[i] = value(first + i + salt_, mine);
      copy_elements(piece, view_of(staging), *stream_);
      stream_->synchronize();
    });
    world_.communicator().all_reduce(elements, ReduceOp::sum(), *stream_);

    std::string problem;
    std::uint64_t hash = 0;
    in_pieces(elements, [&](std::size_t first, TensorView const& piece, std::span<float> staging) {
      copy_elements(view_of(staging), piece, *stream_);
      stream_->synchronize();
      for (std::size_t i = 0; i < staging.size(); ++i) {
        float const expected = sums_[(first + i + salt_) % kPeriod];
        if (staging[i] != expected && problem.empty()) {
          problem = text("rank ", world_.rank(), ": element ", first + i, " of the sum of ", to_string(bytes),
                         " is ", staging[i], ", expected ", expected);
        }
        hash = (hash ^ std::bit_cast<std::uint32_t>(staging[i])) * 0x9E3779B97F4A7C15ULL;
      }
    });
    for (std::string const& found : gather(world_, "problem", problem)) {
      if (!found.empty()) return found;
    }
    auto const hashes = gather(world_, "hash", std::to_string(hash));
    if (std::adjacent_find(hashes.begin(), hashes.end(), std::not_equal_to<>()) != hashes.end()) {
      return text("the sums of ", to_string(bytes), " are not bit-equal on all ranks");
    }
    return "";
  }

 private:
  // A batch moves about this much, so that reading the clock costs nothing and a round is short.
  static constexpr std::size_t kBytesPerBatch = (64_MiB).value;
  static constexpr std::size_t kNcclBytesPerBatch = (4_GiB).value;
  static constexpr std::size_t kMostRepeats = 2000;
  // Calls that fit into a GPU's queue, so that enqueuing them never waits for the GPU.
  static constexpr std::size_t kShortQueue = 100;
  static constexpr Bytes kHostTimed = 1_MiB;
  static constexpr std::size_t kStagingBytes = (16_MiB).value;
  // Values repeat after so many elements.
  static constexpr std::size_t kPeriod = 1009;

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_.size()); }
  [[nodiscard]] static Bytes largest(AllReduceOptions const& options, Device device) {
    return sweep(options, device.kind).back();
  }

  [[nodiscard]] TensorView floats(Bytes bytes) const {
    return {data_.view().data, Shape{bytes.value / sizeof(float)}, DType::f32, data_.view().device};
  }

  // Integers so small that any order of addition is exact in f32 (up to 2^24 / 1009 ranks).
  [[nodiscard]] static float value(std::size_t element, std::size_t rank) {
    return static_cast<float>((element * 7 + rank * 131) % kPeriod);
  }

  // Calls action(index of the first element, piece, as many elements of host memory) over all of `elements`.
  void in_pieces(TensorView const& elements, auto const& action) {
    std::span<float> const staging = staging_.as<float>();
    for (std::size_t first = 0; first < elements.count(); first += staging.size()) {
      std::size_t const count = std::min(staging.size(), elements.count() - first);
      action(first, slice(elements, first, count), staging.first(count));
    }
  }

  [[nodiscard]] double batch_us(Contender const& contender, std::size_t repeats) {
    auto const batch = [&] {
      for (std::size_t i = 0; i < repeats; ++i) contender.run();
    };
    return timer_.milliseconds(batch) * 1e3 / static_cast<double>(repeats);
  }

  [[nodiscard]] double host_us(Contender const& contender) {
    auto const calls = [&] {
      for (std::size_t i = 0; i < kShortQueue; ++i) contender.run();
    };
    return timer_.host_microseconds(calls) / static_cast<double>(kShortQueue);
  }

  World world_;
  bool on_gpu_;
  std::size_t rounds_;
  std::unique_ptr<Stream> stream_;
  StreamTimer timer_;
  Tensor data_;
  Tensor copy_;
  Tensor staging_;
  std::unique_ptr<PlainAllReduce> plain_;
  std::unique_ptr<Communicator> in_rank_order_;
  std::array<float, kPeriod> sums_{};  // over ranks
  std::size_t salt_ = 0;
};

}  // namespace

bool run_all_reduce(World const& world, AllReduceOptions const& options) {
  bool const root = world.rank() == 0;
  if (!options.json.empty()) succeed_on_root(world, "open", [&] { check_writable(options.json); });
  Circumstances where =
      circumstances(std::string(world.communicator().backend()), world.size(), world.device());
  if (root) {
    print_header(std::cout, "all-reduce", where);
    if (world.device().kind == DeviceKind::cpu &&
        world.local_size() > static_cast<int>(std::thread::hardware_concurrency())) {
      std::cout << "note: more ranks than CPUs on this host; times are those of the scheduler\n";
    }
    print_all_reduce_columns(std::cout);
  }
  AllReduceBench bench(world, options);
  std::vector<AllReduceRow> rows;
  for (Bytes const bytes : sweep(options, world.device().kind)) {
    std::string problem = bench.check(bytes);
    if (problem.empty()) {
      rows.push_back(bench.measure(bytes));
      problem = bench.check(bytes);
    }
    if (!problem.empty()) {
      std::cerr << "ddp-bench: wrong result: " << problem << '\n';
      return false;
    }
    if (root) print(std::cout, rows.back(), world.size());
  }
  if (root) {
    where.gpu_clocks = gpu_clocks(world.device());
    print_comparison(std::cout, rows);
    print_clocks(std::cout, where);
  }
  if (!options.json.empty()) {
    succeed_on_root(world, "write", [&] { write_file(options.json, to_json(where, rows)); });
  }
  return true;
}

}  // namespace ddp::bench

#include "all_reduce_bench.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>

#include "ddp/core/text.hpp"
#include "report.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Every rank's value, in rank order.
std::vector<std::string> gather(World const& world, std::string const& name, std::string const& value) {
  ControlPlane& control = world.control();
  return control.all_gather("bench/" + name, value, control.everyone(),
                            Deadline::after(world.options().timeout));
}

// Rank 0 alone reads and writes files; what it finds is news for all.
void succeed_on_root(World const& world, std::string const& what, auto&& action) {
  std::string problem;
  if (world.rank() == 0) {
    try {
      action();
    } catch (Error const& error) {
      problem = error.what();
    }
  }
  problem = gather(world, what, problem).front();
  if (!problem.empty()) throw Error(ErrorCode::io, problem);
}

class AllReduceBench {
 public:
  AllReduceBench(World const& world, AllReduceOptions const& options)
      : world_(world),
        rounds_(options.rounds),
        data_(world.communicator().allocate(options.max)),
        copy_(world.communicator().allocate(options.max)) {}

  [[nodiscard]] AllReduceRow measure(Bytes bytes) {
    std::size_t const repeats = std::clamp(kBytesPerBatch / bytes.value, std::size_t{1}, kMostRepeats);
    TensorView const elements = floats(data_, bytes);
    auto const reduce = [&] { world_.communicator().all_reduce(elements, ReduceOp::sum(), world_.stream()); };
    auto const copy = [&] { std::memcpy(copy_.view().data, data_.view().data, bytes.value); };

    // Zeros, so that repeated sums stay finite. The first batches warm up and do not count.
    std::memset(data_.view().data, 0, bytes.value);
    std::vector<double> reduce_us;
    std::vector<double> copy_us;
    batch_us(reduce, repeats);
    batch_us(copy, repeats);
    for (std::size_t round = 0; round < rounds_; ++round) {
      if (round % 2 == 0) reduce_us.push_back(batch_us(reduce, repeats));
      copy_us.push_back(batch_us(copy, repeats));
      if (round % 2 == 1) reduce_us.push_back(batch_us(reduce, repeats));
    }
    AllReduceRow row;
    row.bytes = bytes;
    row.us = median(slowest_rank(reduce_us));
    row.memcpy_us = median(slowest_rank(copy_us));
    return row;
  }

  // What is wrong with the sum of known numbers, on any rank; "" if nothing is.
  [[nodiscard]] std::string check(Bytes bytes) {
    ++salt_;
    auto const elements = floats(data_, bytes).as<float>();
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = value(i, world_.rank().index());
    world_.communicator().all_reduce(floats(data_, bytes), ReduceOp::sum(), world_.stream());
    world_.stream().synchronize();

    std::string problem;
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      float expected = 0;
      for (std::size_t r = 0; r < ranks(); ++r) expected += value(i, r);
      if (elements[i] != expected && problem.empty()) {
        problem = text("rank ", world_.rank(), ": element ", i, " of the sum of ", to_string(bytes), " is ",
                       elements[i], ", expected ", expected);
      }
      hash = (hash ^ std::bit_cast<std::uint32_t>(elements[i])) * 0x9E3779B97F4A7C15ULL;
    }
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
  static constexpr std::size_t kBytesPerBatch = std::size_t{64} << 20;
  static constexpr std::size_t kMostRepeats = 2000;

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_.size()); }

  [[nodiscard]] static TensorView floats(Tensor const& memory, Bytes bytes) {
    return {memory.view().data, Shape{bytes.value / sizeof(float)}, DType::f32, memory.view().device};
  }

  // Integers so small that any order of addition is exact in f32 (up to 2^24 / 1009 ranks).
  [[nodiscard]] float value(std::size_t element, std::size_t rank) const {
    return static_cast<float>((element * 7 + rank * 131 + salt_) % 1009);
  }

  // Microseconds of one `action`, on this rank; all ranks begin together.
  double batch_us(auto const& action, std::size_t repeats) {
    world_.communicator().barrier(world_.stream());
    world_.stream().synchronize();
    auto const begin = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) action();
    world_.stream().synchronize();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count() /
           static_cast<double>(repeats);
  }

  [[nodiscard]] std::vector<double> slowest_rank(std::vector<double> const& mine) const {
    std::string bytes(mine.size() * sizeof(double), '\0');
    std::memcpy(bytes.data(), mine.data(), bytes.size());
    std::vector<std::vector<double>> by_rank;
    for (std::string const& theirs : gather(world_, "times", bytes)) {
      std::vector<double>& values = by_rank.emplace_back(theirs.size() / sizeof(double));
      std::memcpy(values.data(), theirs.data(), values.size() * sizeof(double));
    }
    return slowest(by_rank);
  }

  World world_;
  std::size_t rounds_;
  Tensor data_;
  Tensor copy_;
  std::size_t salt_ = 0;
};

}  // namespace

bool run_all_reduce(World const& world, AllReduceOptions const& options) {
  bool const root = world.rank() == 0;
  if (!options.json.empty()) succeed_on_root(world, "open", [&] { check_writable(options.json); });
  Circumstances const where = circumstances(std::string(world.communicator().backend()), world.size());
  if (root) {
    print_header(std::cout, "all-reduce", where);
    if (world.local_size() > static_cast<int>(std::thread::hardware_concurrency())) {
      std::cout << "note: more ranks than CPUs on this host; times are those of the scheduler\n";
    }
    print_all_reduce_columns(std::cout);
  }
  AllReduceBench bench(world, options);
  std::vector<AllReduceRow> rows;
  for (Bytes const bytes : sweep(options)) {
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
  if (!options.json.empty()) {
    succeed_on_root(world, "write", [&] { write_file(options.json, to_json(where, rows)); });
  }
  return true;
}

}  // namespace ddp::bench

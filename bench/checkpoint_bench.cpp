#include "checkpoint_bench.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <vector>

#include "circumstances.hpp"
#include "ddp/checkpoint/checkpoint.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/memory.hpp"
#include "ddp/device/tensor_ops.hpp"
#include "ranks.hpp"
#include "report.hpp"
#include "statistics.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTensors = 64;
constexpr std::size_t kPiece = (8_MiB).value;

double seconds_of(std::function<void()> const& work) {
  auto const begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A descriptor that is closed, and a file that is removed, whatever happens.
class PlainFile {
 public:
  explicit PlainFile(fs::path path) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) throw_errno(text("creating ", path_.string()), errno);
  }
  ~PlainFile() {
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
  PlainFile(PlainFile const&) = delete;
  PlainFile& operator=(PlainFile const&) = delete;

  void write(std::span<std::byte const> bytes) const {
    while (!bytes.empty()) {
      ssize_t const count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kPiece));
      if (count < 0) throw_errno(text("writing ", path_.string()), errno);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    if (::fsync(descriptor_) != 0) throw_errno(text("flushing ", path_.string()), errno);
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
};

// Tensors with contents, and host memory that they can be copied to.
class State {
 public:
  State(World const& world, Bytes bytes)
      : stream_(world.stream()), copy_(pinned_zeros(Shape{bytes.value / sizeof(float)}, DType::f32)) {
    auto const numbers = copy_.as<float>();
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 8191) * 0.37F;
    std::size_t const count = numbers.size() / kTensors;
    for (std::size_t t = 0; t < kTensors; ++t) {
      tensors_.push_back(zeros(Shape{count}, DType::f32, world.device()));
      copy_elements(tensors_.back(), slice(copy_, t * count, count), stream_);
    }
    stream_.synchronize();
  }
  [[nodiscard]] CheckpointTensors tensors() const {
    CheckpointTensors named;
    for (std::size_t t = 0; t < kTensors; ++t) named.model.push_back({text("tensor", t), tensors_[t]});
    return named;
  }
  void copy() const {
    std::size_t const count = tensors_.front().view().count();
    for (std::size_t t = 0; t < kTensors; ++t) {
      copy_elements(slice(copy_, t * count, count), tensors_[t], stream_);
    }
    stream_.synchronize();
  }
  [[nodiscard]] std::span<std::byte const> host() const { return std::as_bytes(copy_.as<float>()); }

 private:
  Stream& stream_;
  Tensor copy_;
  std::vector<Tensor> tensors_;
};

}  // namespace

void run_checkpoint(World const& world, CheckpointBenchOptions const& options) {
  bool const first = world.rank() == 0;
  fs::path const folder = fs::path(options.folder) / text("ddp-bench-checkpoint-", options.size.value);
  if (!options.json.empty()) succeed_on_root(world, "json", [&] { check_writable(options.json); });
  State const state(world, options.size);
  std::vector<double> plain;
  std::vector<double> whole;
  std::vector<double> stall;
  std::vector<double> copy;
  {
    Checkpoint checkpoint(world, folder, state.tensors());
    auto const write_plain = [&] {
      if (!first) return;
      PlainFile const file(folder / "plain");
      plain.push_back(seconds_of([&] { file.write(state.host()); }));
    };
    auto const write_checkpoint = [&](std::uint64_t round) {
      double saving = 0;
      whole.push_back(seconds_of([&] {
        saving = seconds_of([&] { checkpoint.save({.step = round}); });
        checkpoint.wait();
      }));
      stall.push_back(saving);
    };
    for (std::size_t round = 0; round < options.rounds; ++round) {
      world.barrier();
      copy.push_back(seconds_of([&] { state.copy(); }));
      bool const plain_first = round % 2 == 0;
      if (plain_first) write_plain();
      world.barrier();
      write_checkpoint(round);
      if (!plain_first) write_plain();
    }
  }
  world.barrier();
  if (!first) return;
  fs::remove_all(folder);
  CheckpointRow const row{options.size, median(plain), median(whole), median(stall) * 1e3,
                          median(copy) * 1e3};
  auto const now = circumstances(std::string(world.communicator().backend()), world.size(), world.device());
  print_header(std::cout, "checkpoint", now);
  print(std::cout, row);
  if (!options.json.empty()) write_file(options.json, to_json(now, row));
}

}  // namespace ddp::bench

#include "ranks.hpp"

#include <chrono>
#include <cstring>

#include "ddp/core/error.hpp"
#include "statistics.hpp"

namespace ddp::bench {

std::vector<std::string> gather(World const& world, std::string const& name, std::string const& value) {
  ControlPlane& control = world.control();
  return control.all_gather("bench/" + name, value, control.everyone(),
                            Deadline::after(world.options().timeout));
}

void succeed_on_root(World const& world, std::string const& what, std::function<void()> const& action) {
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

std::vector<double> slowest_rank(World const& world, std::vector<double> const& mine) {
  std::string bytes(mine.size() * sizeof(double), '\0');
  std::memcpy(bytes.data(), mine.data(), bytes.size());
  std::vector<std::vector<double>> by_rank;
  for (std::string const& theirs : gather(world, "times", bytes)) {
    std::vector<double>& values = by_rank.emplace_back(theirs.size() / sizeof(double));
    std::memcpy(values.data(), theirs.data(), values.size() * sizeof(double));
  }
  return slowest(by_rank);
}

StreamTimer::StreamTimer(World const& world, Stream& stream)
    : world_(world), stream_(stream), begin_(world.device()), end_(world.device()) {}

void StreamTimer::meet() {
  world_.communicator().barrier(stream_);
  stream_.synchronize();
}

double StreamTimer::milliseconds(std::function<void()> const& enqueue) {
  meet();
  begin_.record(stream_);
  enqueue();
  end_.record(stream_);
  stream_.synchronize();
  return Event::milliseconds(begin_, end_);
}

double StreamTimer::host_microseconds(std::function<void()> const& enqueue) {
  meet();
  auto const begin = std::chrono::steady_clock::now();
  enqueue();
  auto const end = std::chrono::steady_clock::now();
  stream_.synchronize();
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

}  // namespace ddp::bench

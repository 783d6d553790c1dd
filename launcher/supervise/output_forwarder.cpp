#include "launcher/supervise/output_forwarder.hpp"

#include <sys/epoll.h>

#include <string>
#include <utility>

#include "ddp/core/text.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kPieceOfOutput = (64_KiB).value;

}  // namespace

void OutputForwarder::add(Rank rank, FileDescriptor out, FileDescriptor err) {
  bool const restarted = plan_.generation > 0;  // a rank appends to what the one before it wrote
  ranks_.push_back({make_stream(rank, OutputStream::out, std::move(out), restarted),
                    make_stream(rank, OutputStream::err, std::move(err), restarted)});
  for (RankStream& stream : ranks_.back()) read(stream);
}

void OutputForwarder::replace(std::size_t index, Rank rank, FileDescriptor out, FileDescriptor err) {
  Streams& streams = ranks_[index];
  for (RankStream& stream : streams) close(stream);
  streams = {make_stream(rank, OutputStream::out, std::move(out), true),
             make_stream(rank, OutputStream::err, std::move(err), true)};
  if (!reading_) return;
  for (RankStream& stream : streams) read(stream);
}

void OutputForwarder::resize(winsize const& window) {
  for (Streams const& rank : ranks_) {
    for (RankStream const& stream : rank) ioctl(stream.fd(), TIOCSWINSZ, &window);  // fails for a pipe
  }
}

void OutputForwarder::silence_mpirun() {
  for (Streams& streams : ranks_) {
    for (RankStream& stream : streams) stream.silence_mpirun();
  }
}

void OutputForwarder::drain(std::size_t index) {
  for (RankStream& stream : ranks_[index]) stream.forward(console_, RankStream::kMostInAPipe);
}

void OutputForwarder::update_flow() {
  for (OutputStream const which : {OutputStream::out, OutputStream::err}) {
    if (which == OutputStream::err && console_.one_place()) break;
    Sink& sink = console_.sink(which);
    bool const wanted = sink.pending() > 0;
    if (wanted == std::exchange(console_waits_[which == OutputStream::out ? 0 : 1], wanted)) continue;
    if (wanted) {
      loop_.watch(sink.fd(), EPOLLOUT, [this, which] { console_.flush(which); });
    } else {
      loop_.forget(sink.fd());
    }
  }
  bool const read_now = !console_.congested();
  if (read_now == std::exchange(reading_, read_now)) return;
  for (Streams& rank : ranks_) {
    for (RankStream& stream : rank) {
      if (!stream.open()) continue;
      // Not watched at all, since a hang-up is reported whatever events are asked for.
      read_now ? read(stream) : loop_.forget(stream.fd());
    }
  }
}

void OutputForwarder::finish() {
  for (Streams& rank : ranks_) {
    for (RankStream& stream : rank) close(stream);
  }
}

/// A rank's, or mpirun's own.
LogFile OutputForwarder::open_log(std::optional<Rank> of, OutputStream stream, bool append) const {
  if (!logs_) return {};
  std::string const name = of ? text("rank", *of) : std::string("mpirun");
  return {console_, logs_, name + (stream == OutputStream::out ? ".out" : ".err"), append};
}

RankStream OutputForwarder::make_stream(Rank rank, OutputStream stream, FileDescriptor pipe,
                                        bool goes_on) const {
  if (!plan_.mpi_ranks) {
    return {rank, stream, std::move(pipe), open_log(rank, stream, goes_on), options_.timestamps};
  }
  static_cast<void>(open_log(std::nullopt, stream, goes_on));  // empties the file of an older job
  for (Rank const each : all_ranks(*plan_.mpi_ranks)) static_cast<void>(open_log(each, stream, goes_on));
  return {*plan_.mpi_ranks,    stream,
          std::move(pipe),     [this, stream](std::optional<Rank> of) { return open_log(of, stream, true); },
          options_.timestamps, TagReader(plan_.tags_have_space)};
}

void OutputForwarder::read(RankStream& stream) {
  loop_.watch(stream.fd(), EPOLLIN, [this, &stream] { forward(stream); });
}

void OutputForwarder::forward(RankStream& stream) {
  bool const goes_on = stream.forward(console_, kPieceOfOutput);
  if (!goes_on) close(stream);
}

void OutputForwarder::close(RankStream& stream) {
  if (stream.open() && reading_) loop_.forget(stream.fd());
  stream.finish(console_);
}

}  // namespace ddp::launcher

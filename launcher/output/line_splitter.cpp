#include "launcher/output/line_splitter.hpp"

#include <algorithm>

#include "core/utc_time.hpp"

namespace ddp::launcher {

void LineSplitter::feed(std::string_view bytes, Sink const& sink) {
  if (after_carriage_return_ && !bytes.empty()) {
    after_carriage_return_ = false;
    if (bytes.front() == '\n') {
      sink({}, End::late_newline);
      bytes.remove_prefix(1);
    }
  }
  while (!bytes.empty()) {
    std::size_t const stop = bytes.find_first_of("\r\n");
    std::size_t const length = std::min(stop, bytes.size());
    if (partial_.size() + length > kMaxLine) {
      std::size_t const room = kMaxLine - partial_.size();
      partial_.append(bytes.substr(0, room));
      bytes.remove_prefix(room);
      sink(partial_, End::cut);
      partial_.clear();
      continue;
    }
    partial_.append(bytes.substr(0, length));
    bytes.remove_prefix(length);
    if (bytes.empty()) return;
    bool const is_return = bytes.front() == '\r';
    bytes.remove_prefix(1);
    bool const both = is_return && !bytes.empty() && bytes.front() == '\n';
    if (both) bytes.remove_prefix(1);
    after_carriage_return_ = is_return && bytes.empty() && !both;
    sink(partial_, is_return && !both ? End::carriage_return : End::newline);
    partial_.clear();
  }
}

void LineSplitter::finish(Sink const& sink) {
  after_carriage_return_ = false;
  if (partial_.empty()) return;
  sink(partial_, End::cut);
  partial_.clear();
}

std::string LineStamper::stamp(std::string_view bytes, std::chrono::system_clock::time_point now) {
  std::string const time = utc_text(now) + " ";
  std::string stamped;
  while (!bytes.empty()) {
    if (at_beginning_) stamped += time;
    std::size_t const newline = bytes.find('\n');
    at_beginning_ = newline != std::string_view::npos;
    std::size_t const length = at_beginning_ ? newline + 1 : bytes.size();
    stamped.append(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return stamped;
}

}  // namespace ddp::launcher

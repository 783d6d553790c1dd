#include "launcher/output/line_stamper.hpp"

#include "core/utc_time.hpp"

namespace ddp::launcher {

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

// The one description of ddp-launch's options: how each is read, and what --help and all made from it say.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"

namespace ddp::launcher {

/// Options under one heading of --help, with what each sets once all are known to be well-formed.
struct OptionGroup {
  std::string title;
  boost::program_options::options_description options;
};

/// A value's name says what completes it: FILE, DIR, NAME (of a variable), words in lower case as they are.
[[nodiscard]] std::vector<OptionGroup> described_options(Options& to);

}  // namespace ddp::launcher

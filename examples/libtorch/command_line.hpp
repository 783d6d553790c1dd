// How the libtorch examples read their command lines.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <iostream>
#include <stdexcept>
#include <string>

namespace command_line {

namespace po = boost::program_options;

inline auto* count(std::int64_t& to, std::int64_t otherwise) {
  return po::value(&to)->value_name("N")->default_value(otherwise);
}

/// Throws std::invalid_argument unless `good`.
inline void expect(bool good, std::string const& what) {
  if (!good) throw std::invalid_argument("expected " + what);
}

/// Fills what `all` names, and calls body(). Returns main()'s result: 64 for a command line that cannot be.
template <class Body>
int run(int argc, char** argv, std::string const& name, po::options_description all, Body const& body) {
  try {
    all.add_options()("help,h", "print this");
    po::variables_map given;
    po::store(po::parse_command_line(argc, argv, all), given);
    po::notify(given);
    if (given.count("help") != 0) {
      std::cout << name << " [options]\n" << all;
    } else {
      body();
    }
    return 0;
  } catch (std::logic_error const& error) {  // Boost's too
    std::cerr << name << ": " << error.what() << ". " << name << " --help lists the options\n";
    return 64;
  }
}

}  // namespace command_line

#include "train_mlp/options.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <limits>

#include "data/image_set.hpp"
#include "ddp/core/text.hpp"

namespace train_mlp {
namespace {

namespace po = boost::program_options;

po::options_description description() {
  Options const defaults;
  // Values are read as text and parsed here: a library would take -1 for a large unsigned number.
  auto const value = [](char const* name) { return po::value<std::string>()->value_name(name); };
  po::options_description all("Options", 100);
  auto add = all.add_options();
  add("data", value("DIR"),
      ddp::text("folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz] (default: ",
                data::kFashionMnistFolder, ", from the Debian package dataset-fashion-mnist)")
          .c_str());
  add("synthetic", "train on made-up images instead of files");
  add("limit", value("N"), "use the first N training images only");
  add("hidden", value("LIST"),
      ddp::text("widths of the hidden layers (default: ", ddp::join(defaults.hidden, ","), ")").c_str());
  add("batch", value("N"),
      ddp::text("samples per step over all ranks together (default: ", defaults.batch, ")").c_str());
  add("epochs", value("N"),
      ddp::text("passes over the training images (default: ", defaults.epochs, ")").c_str());
  add("seed", value("N"),
      ddp::text("of initial values and shuffling (default: ", defaults.seed, ")").c_str());
  add("lr", value("RATE"),
      ddp::text("learning rate of Adam at the start; it falls to 0 along a cosine (default: ",
                defaults.learning_rate, ")")
          .c_str());
  add("graph", "record a step into a CUDA graph and replay it, where ranks have GPUs of their own");
  add("shard",
      "each rank keeps and updates its part of Adam's state only; the same numbers, and the same "
      "checkpoints");
  add("log-json", value("FILE"), "write one JSON object a line: one for each epoch, and a last one");
  add("checkpoint", value("DIR"),
      "write checkpoints there; on SIGTERM and SIGINT all ranks write one more and end with 128 + the "
      "signal");
  add("checkpoint-every", value("N"), "after so many steps (default: at the end of each epoch)");
  add("resume",
      "go on from the newest checkpoint of --checkpoint, or begin if there is none; --log-json is continued");
  add("survive",
      "under ddp-launch --survive: when a rank is lost the others go on, with the same batches, with --shard "
      "from the last checkpoint");
  add("help,h", "print this");
  return all;
}

template <class T>
T parse_number(std::string const& option, std::string const& text, T low, char const* expected) {
  T value{};
  auto const end = text.data() + text.size();
  auto const [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end || text.empty() || !(value >= low) ||
      value > std::numeric_limits<T>::max()) {
    throw UsageError(ddp::text("--", option, ": expected ", expected, ", found \"", text, "\""));
  }
  return value;
}

std::vector<std::size_t> parse_widths(std::string const& text) {
  std::vector<std::size_t> widths;
  for (std::size_t start = 0; start <= text.size();) {
    std::size_t const comma = std::min(text.find(',', start), text.size());
    std::string const item = text.substr(start, comma - start);
    std::size_t width = 0;
    auto const [rest, error] = std::from_chars(item.data(), item.data() + item.size(), width);
    if (error != std::errc{} || rest != item.data() + item.size() || width == 0 || width > 65536) {
      throw UsageError(
          ddp::text("--hidden: expected widths from 1 to 65536 with commas between, as in 256,128, "
                    "found \"",
                    item, "\" in \"", text, "\""));
    }
    widths.push_back(width);
    start = comma + 1;
  }
  return widths;
}

}  // namespace

std::string help_text() {
  return ddp::text(
      "train_mlp [options]\n\n"
      "Trains a network of fully connected layers to classify images. Alone it is one rank; under ddp-launch "
      "the\n"
      "ranks share each batch, so that any number of them does the same training:\n\n"
      "  ddp-launch --cpus 2 -- train_mlp --epochs 5\n\n",
      description(),
      "\nExit codes: 0 done, 64 wrong options, 65 damaged data or a checkpoint of another training, 66 data "
      "missing,\n73 --log-json or --checkpoint cannot be written, 74 a checkpoint cannot be read or written, "
      "143 "
      "stopped by\nSIGTERM with a checkpoint (130 by SIGINT).\n");
}

std::optional<Options> parse_options(std::vector<std::string> const& arguments) {
  po::variables_map given;
  try {
    po::options_description all = description();
    all.add_options()("stray", po::value<std::vector<std::string>>());
    auto const style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(arguments)
                  .options(all)
                  .positional(po::positional_options_description().add("stray", -1))
                  .style(style)
                  .run(),
              given);
  } catch (po::error const& error) {
    throw UsageError(error.what());
  }
  if (given.count("stray") != 0) {
    throw UsageError(ddp::text("expected options only, found \"",
                               given["stray"].as<std::vector<std::string>>().front(), "\""));
  }
  if (given.count("help") != 0) return std::nullopt;

  Options options;
  auto const text = [&](char const* name) -> std::string const* {
    return given.count(name) == 0 ? nullptr : &given[name].as<std::string>();
  };
  auto const count = [&](char const* name, std::size_t otherwise) {
    auto const* const found = text(name);
    return found == nullptr ? otherwise : parse_number<std::size_t>(name, *found, 1, "a number from 1 on");
  };
  options.synthetic = given.count("synthetic") != 0;
  if (auto const* const folder = text("data")) {
    if (options.synthetic) {
      throw UsageError("--data and --synthetic contradict each other: expected one of them, found both");
    }
    options.data = *folder;
    options.data_given = true;
  } else if (!options.synthetic) {
    options.data = data::kFashionMnistFolder;
  }
  if (text("limit") != nullptr) options.limit = count("limit", 0);
  if (auto const* const widths = text("hidden")) options.hidden = parse_widths(*widths);
  options.batch = count("batch", options.batch);
  options.epochs = count("epochs", options.epochs);
  if (auto const* const seed = text("seed")) {
    options.seed = parse_number<std::uint64_t>("seed", *seed, 0, "a number from 0 to 2^64 - 1");
  }
  if (auto const* const rate = text("lr")) {
    options.learning_rate =
        parse_number<double>("lr", *rate, std::numeric_limits<double>::min(), "a number above 0");
  }
  if (auto const* const file = text("log-json")) options.log_json = *file;
  if (auto const* const folder = text("checkpoint")) options.checkpoint = *folder;
  if (text("checkpoint-every") != nullptr) options.checkpoint_every = count("checkpoint-every", 0);
  options.graph = given.count("graph") != 0;
  options.shard = given.count("shard") != 0;
  options.resume = given.count("resume") != 0;
  options.survive = given.count("survive") != 0;
  if (options.survive && options.shard && options.checkpoint.empty()) {
    throw UsageError(
        "--survive with --shard needs --checkpoint DIR, found none: of a lost rank's part of Adam's state "
        "there is no other copy");
  }
  for (char const* const name : {"checkpoint-every", "resume"}) {
    if (given.count(name) != 0 && options.checkpoint.empty()) {
      throw UsageError(ddp::text("--", name, " needs --checkpoint DIR, found none"));
    }
  }
  return options;
}

}  // namespace train_mlp

#include "options.hpp"

#include <boost/program_options.hpp>
#include <sstream>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"
#include "size_text.hpp"

namespace ddp::bench {
namespace {

namespace po = boost::program_options;

constexpr char const* kUsage =
    "ddp-bench all-reduce [options]   times all-reduces of the world that this program was started in\n"
    "ddp-bench reducer [options]      times gradient_ready() and synchronize() over a null communicator\n"
    "ddp-bench overlap [options]      times a backward pass of real matrix products with its communication\n"
    "ddp-bench checkpoint [options]   times a checkpoint beside a plain write of the same bytes\n"
    "ddp-bench data-parallel [options] times training steps through DataParallel; under ddp-launch the same "
    "by DDP\n"
    "ddp-bench merge-traces FOLDER    puts the timelines of all ranks (DDP_TRACE=FOLDER) into one\n"
    "ddp-bench COMMAND --help         lists a command's options\n";

po::variables_map parse(std::vector<std::string> const& arguments, po::options_description const& description,
                        po::positional_options_description const& positional = {}) {
  // No guessing: an abbreviation that works today is ambiguous tomorrow.
  auto const style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
  po::variables_map values;
  try {
    po::store(
        po::command_line_parser(arguments).options(description).style(style).positional(positional).run(),
        values);
    po::notify(values);
  } catch (po::error const& error) {
    throw Error(ErrorCode::invalid_argument, text(error.what(), "; see --help"));
  }
  return values;
}

std::string help_text(char const* command, po::options_description const& description) {
  std::ostringstream out;
  out << "ddp-bench " << command << " [options]\n" << description;
  return std::move(out).str();
}

std::size_t positive(po::variables_map const& values, char const* name, std::size_t least) {
  auto const number = values[name].as<long long>();
  if (number < static_cast<long long>(least)) {
    throw Error(ErrorCode::invalid_argument, text("--", name, " is ", number, ", expected at least ", least));
  }
  return static_cast<std::size_t>(number);
}

std::vector<std::size_t> counts(po::variables_map const& values, char const* name) {
  std::vector<std::size_t> result;
  for (long long const number : values[name].as<std::vector<long long>>()) {
    if (number < 1) {
      throw Error(ErrorCode::invalid_argument, text("--", name, " has ", number, ", expected at least 1"));
    }
    result.push_back(static_cast<std::size_t>(number));
  }
  return result;
}

Bytes whole_floats(po::variables_map const& values, char const* name) {
  Bytes const bytes = parse_bytes(values[name].as<std::string>());
  if (bytes.value == 0 || bytes.value % sizeof(float) != 0) {
    throw Error(
        ErrorCode::invalid_argument,
        text("--", name, " is ", bytes.value, " B, expected a positive multiple of 4 B: elements are f32"));
  }
  return bytes;
}

Bytes largest_message(DeviceKind kind) { return kind == DeviceKind::cpu ? 256_MiB : 1_GiB; }

Options parse_all_reduce(std::vector<std::string> const& arguments) {
  AllReduceOptions options;
  po::options_description description("Options");
  auto add = description.add_options();
  add("help,h", "print this");
  add("min", po::value<std::string>()->value_name("SIZE")->default_value("1KiB"), "the smallest message");
  add("max", po::value<std::string>()->value_name("SIZE"),
      "the largest message; 256MiB on CPUs, 1GiB on GPUs if not given");
  add("factor", po::value<long long>()->value_name("N")->default_value(4), "from one size to the next");
  add("rounds", po::value<long long>()->value_name("N")->default_value(11),
      "measurements of each size, >= 5");
  add("json", po::value<std::string>(&options.json)->value_name("FILE"), "write the results there as JSON");
  po::variables_map const values = parse(arguments, description);
  if (values.count("help") != 0) return Help{help_text("all-reduce", description)};
  options.min = whole_floats(values, "min");
  if (values.count("max") != 0) options.max = whole_floats(values, "max");
  options.factor = positive(values, "factor", 2);
  options.rounds = positive(values, "rounds", 5);
  Bytes const max = options.max.value_or(largest_message(DeviceKind::cpu));
  if (options.min > max) {
    throw Error(ErrorCode::invalid_argument,
                text("--min ", to_string(options.min), " is larger than --max ", to_string(max)));
  }
  return options;
}

Options parse_reducer(std::vector<std::string> const& arguments) {
  ReducerBenchOptions options;
  po::options_description description("Options");
  auto add = description.add_options();
  auto* const numbers = po::value<std::vector<long long>>()->multitoken()->value_name("N…");
  auto* const sizes = po::value<std::vector<long long>>()->multitoken()->value_name("N…");
  add("help,h", "print this");
  add("parameters", numbers->default_value({100, 1'000, 10'000}, "100 1000 10000"), "how many parameters");
  add("elements", sizes->default_value({64, 4096}, "64 4096"), "elements of each parameter");
  add("steps", po::value<long long>()->value_name("N")->default_value(201), "steps to measure, >= 5");
  add("json", po::value<std::string>(&options.json)->value_name("FILE"), "write the results there as JSON");
  po::variables_map const values = parse(arguments, description);
  if (values.count("help") != 0) return Help{help_text("reducer", description)};
  options.parameters = counts(values, "parameters");
  options.elements = counts(values, "elements");
  options.steps = positive(values, "steps", 5);
  return options;
}

DType floating(po::variables_map const& values, char const* name) {
  auto const& given = values[name].as<std::string>();
  for (DType const dtype : {DType::f32, DType::bf16}) {
    if (given == to_string(dtype)) return dtype;
  }
  throw Error(ErrorCode::invalid_argument, text("--", name, " is ", given, ", expected f32 or bf16"));
}

Options parse_overlap(std::vector<std::string> const& arguments) {
  OverlapOptions options;
  po::options_description description("Options");
  auto add = description.add_options();
  add("help,h", "print this");
  add("layers", po::value<long long>()->value_name("N")->default_value(24), "linear layers, >= 2");
  add("width", po::value<long long>()->value_name("N"),
      "of a layer, inputs and outputs; 4096 on GPUs, 256 on CPUs if not given");
  add("rows", po::value<long long>()->value_name("N"),
      "samples; if not given, so many that the backward pass takes as long as its communication");
  add("dtype", po::value<std::string>()->value_name("TYPE")->default_value("f32"), "f32, or bf16 on GPUs");
  add("bucket", po::value<std::string>()->value_name("SIZE"),
      "size of a bucket; if not given, the runtime's 25 MiB, or a layer's gradient if that is smaller");
  add("rounds", po::value<long long>()->value_name("N")->default_value(11), "measurements, >= 5");
  add("comm-sms", po::value<long long>()->value_name("N")->default_value(options.comm_sms),
      "GPUs: multiprocessors set aside for communication (WorldOptions::comm_sms); 0: none");
  add("quick", "a small model and 5 rounds: whether it works, not how fast it is");
  add("json", po::value<std::string>(&options.json)->value_name("FILE"), "write the results there as JSON");
  add("trace", po::value<std::string>(&options.trace)->value_name("FOLDER"),
      "write a timeline of a few more steps for https://ui.perfetto.dev");
  po::variables_map const values = parse(arguments, description);
  if (values.count("help") != 0) return Help{help_text("overlap", description)};
  options.layers = positive(values, "layers", 2);
  options.rounds = positive(values, "rounds", 5);
  options.comm_sms = static_cast<int>(positive(values, "comm-sms", 0));
  if (values.count("quick") != 0) {
    options.layers = 16;
    options.width = 128;
    options.rounds = 5;
  }
  if (values.count("width") != 0) options.width = positive(values, "width", 1);
  if (values.count("rows") != 0) options.rows = positive(values, "rows", 1);
  options.dtype = floating(values, "dtype");
  if (values.count("bucket") != 0) {
    options.bucket = parse_bytes(values["bucket"].as<std::string>());
    require(options.bucket->value > 0, "--bucket is 0 B, expected a size above that");
  }
  return options;
}

Options parse_checkpoint(std::vector<std::string> const& arguments) {
  CheckpointBenchOptions options;
  po::options_description description("Options");
  auto add = description.add_options();
  add("help,h", "print this");
  add("size", po::value<std::string>()->value_name("SIZE")->default_value("1GiB"), "of the tensors together");
  add("folder", po::value<std::string>(&options.folder)->value_name("DIR")->default_value("."),
      "on the disk that is measured");
  add("rounds", po::value<long long>()->value_name("N")->default_value(7), "measurements, >= 5");
  add("json", po::value<std::string>(&options.json)->value_name("FILE"), "write the results there as JSON");
  po::variables_map const values = parse(arguments, description);
  if (values.count("help") != 0) return Help{help_text("checkpoint", description)};
  options.size = parse_bytes(values["size"].as<std::string>());
  require(options.size.value > 0 && options.size.value % 256 == 0,
          text("--size is ", options.size.value, " B, expected a positive multiple of 256 B"));
  options.rounds = positive(values, "rounds", 5);
  return options;
}

Options parse_data_parallel(std::vector<std::string> const& arguments) {
  DataParallelBenchOptions options;
  po::options_description description("Options");
  auto add = description.add_options();
  auto const number = [](long long preset) {
    return po::value<long long>()->value_name("N")->default_value(preset);
  };
  add("help,h", "print this");
  add("layers", number(12), "linear layers, each with a ReLU, >= 1");
  add("width", po::value<long long>()->value_name("N"), "of a layer; 3072 on GPUs, 64 on CPUs if not given");
  add("rows", po::value<long long>()->value_name("N"),
      "samples of each device; 8192 on GPUs, 16 on CPUs if not given");
  add("cpus", po::value<long long>()->value_name("N"),
      "so many virtual CPU devices instead of all GPUs; 2 where there is none");
  add("steps", number(5), "steps of one measurement, >= 1");
  add("rounds", number(11), "measurements, >= 5");
  add("json", po::value<std::string>(&options.json)->value_name("FILE"), "write the results there as JSON");
  po::variables_map const values = parse(arguments, description);
  if (values.count("help") != 0) return Help{help_text("data-parallel", description)};
  options.layers = positive(values, "layers", 1);
  if (values.count("width") != 0) options.width = positive(values, "width", 1);
  if (values.count("rows") != 0) options.rows = positive(values, "rows", 1);
  if (values.count("cpus") != 0) options.cpus = positive(values, "cpus", 1);
  options.steps = positive(values, "steps", 1);
  options.rounds = positive(values, "rounds", 5);
  return options;
}

Options parse_merge_traces(std::vector<std::string> const& arguments) {
  MergeTracesOptions options;
  po::options_description description("Options");
  auto add = description.add_options();
  add("help,h", "print this");
  add("folder", po::value<std::string>(&options.folder)->value_name("FOLDER"),
      "holds rank0.json, rank1.json …");
  add("output", po::value<std::string>(&options.output)->value_name("FILE"),
      "where to write; merged.json in FOLDER if not given");
  po::variables_map const values =
      parse(arguments, description, po::positional_options_description().add("folder", 1));
  if (values.count("help") != 0) return Help{help_text("merge-traces", description)};
  if (options.folder.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "merge-traces: no folder given; it is what DDP_TRACE or --trace named");
  }
  if (options.output.empty()) options.output = options.folder + "/merged.json";
  return options;
}

}  // namespace

Options parse_options(std::vector<std::string> const& arguments) {
  std::string const command = arguments.empty() ? "" : arguments.front();
  if (command == "--help" || command == "-h") return Help{kUsage};
  if (command.empty()) throw Error(ErrorCode::invalid_argument, text("no command given\n", kUsage));
  std::vector<std::string> const rest(arguments.begin() + 1, arguments.end());
  if (command == "all-reduce") return parse_all_reduce(rest);
  if (command == "reducer") return parse_reducer(rest);
  if (command == "overlap") return parse_overlap(rest);
  if (command == "checkpoint") return parse_checkpoint(rest);
  if (command == "data-parallel") return parse_data_parallel(rest);
  if (command == "merge-traces") return parse_merge_traces(rest);
  throw Error(ErrorCode::invalid_argument, text("there is no command \"", command, "\"\n", kUsage));
}

std::vector<Bytes> sweep(AllReduceOptions const& options, DeviceKind kind) {
  Bytes const max = options.max.value_or(largest_message(kind));
  std::vector<Bytes> sizes;
  for (Bytes bytes = options.min; bytes < max; bytes = options.factor * bytes) {
    sizes.push_back(bytes);
    if (bytes > max / options.factor) break;
  }
  sizes.push_back(max);
  return sizes;
}

}  // namespace ddp::bench

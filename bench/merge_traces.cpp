#include "merge_traces.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "ddp/core/error.hpp"
#include "ddp/core/text.hpp"

namespace ddp::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

fs::path file_of(fs::path const& folder, Rank rank) { return folder / text("rank", rank, ".json"); }

// The rank whose file this is, by its name.
std::optional<Rank> rank_of(fs::path const& file) {
  std::string const name = file.stem().string();
  int rank = 0;
  if (!name.starts_with("rank")) return std::nullopt;
  std::from_chars(name.data() + 4, name.data() + name.size(), rank);
  if (rank < 0 || file_of("", Rank(rank)) != file.filename()) return std::nullopt;
  return Rank(rank);
}

std::vector<Rank> ranks_in(fs::path const& folder) {
  std::error_code failure;
  std::vector<Rank> ranks;
  for (fs::directory_entry const& entry : fs::directory_iterator(folder, failure)) {
    if (auto const rank = rank_of(entry.path())) ranks.push_back(*rank);
  }
  if (failure) throw_errno(text("reading the folder ", folder), failure.value());
  std::ranges::sort(ranks);
  return ranks;
}

std::int64_t origin_of(Json const& trace) { return trace["otherData"]["unix_ns"].get<std::int64_t>(); }

// A rank's file, checked to have what a merge needs.
Json read_trace(fs::path const& file) {
  std::error_code unknown;
  require(fs::is_regular_file(file, unknown) || unknown, [&] { return text(file, " is no regular file"); });
  Classic<std::ifstream> in(file, std::ios::binary);
  if (!in) throw_errno(text("reading the trace ", file), errno);
  Json trace = Json::parse(in, nullptr, false);
  Json::json_pointer const origin("/otherData/unix_ns");
  Json::json_pointer const events("/traceEvents");
  require(trace.contains(origin) && trace[origin].is_number_integer() && trace.contains(events) &&
              trace[events].is_array(),
          [&] { return text(file, " is no trace that this library wrote (or was not written to its end)"); });
  return trace;
}

}  // namespace

std::vector<Rank> merge_traces(fs::path const& folder, fs::path const& merged) {
  std::vector<Rank> const ranks = ranks_in(folder);
  if (ranks.empty()) {
    throw Error(ErrorCode::not_found,
                text("there is no trace in ", folder, ": expected rank0.json, rank1.json …"));
  }
  // Twice through the files, so that only one is in memory at a time.
  std::vector<std::int64_t> origins;
  for (Rank const rank : ranks) origins.push_back(origin_of(read_trace(file_of(folder, rank))));
  std::int64_t const first_origin = std::ranges::min(origins);
  Classic<std::ofstream> out(merged, std::ios::binary);
  Json const about{{"ranks", ranks.size()}, {"unix_ns", first_origin}};
  out << R"({"displayTimeUnit": "ms", "otherData": )" << about << R"(, "traceEvents": [)";
  char const* before = "\n";
  for (Rank const rank : ranks) {
    Json trace = read_trace(file_of(folder, rank));
    double const shift = static_cast<double>(origin_of(trace) - first_origin) / 1e3;
    for (Json& event : trace["traceEvents"]) {
      if (event.is_object() && event.contains("ts") && event["ts"].is_number())
        event["ts"] = event["ts"].get<double>() + shift;
      out << std::exchange(before, ",\n") << event.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
  }
  out << "\n]}\n" << std::flush;
  if (!out) throw_errno(text("writing the trace ", merged), errno);
  return ranks;
}

}  // namespace ddp::bench

#include "checkpoint/writer.hpp"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "checkpoint/durable_file.hpp"
#include "core/pausing_deadline.hpp"
#include "core/record.hpp"
#include "core/system/thread_without_signals.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kTimeToGiveUp{2000};
constexpr std::chrono::milliseconds kTimeToTidy{60000};

// Of a wait for other ranks, after which a writer looks whether it is given up. Perhaps nobody comes any
// more: when the World was rebuilt meanwhile, the others have given up too.
constexpr std::chrono::milliseconds kBetweenLooks{100};

constexpr int kWell = -1;  // in place of an ErrorCode

// What this rank tells the others: the result, or why there is none.
std::string word_of(std::function<std::string()> const& action) {
  auto const failed = [](ErrorCode code, std::exception const& error) {
    return record(static_cast<int>(code), std::string_view(error.what()));
  };
  try {
    return record(kWell, action());
  } catch (Error const& error) {
    return failed(error.code(), error);
  } catch (std::exception const& error) {
    return failed(ErrorCode::io, error);
  }
}

}  // namespace

std::vector<std::string> CheckpointGroup::exchange(std::string_view what, std::string_view word,
                                                   std::atomic<bool> const* given_up) const {
  Deadline const deadline = Deadline::after(timeout);
  for (;;) {
    bool const is_last = given_up == nullptr || deadline.remaining() <= kBetweenLooks;
    try {
      return control->all_gather(text(name, what), word, members,
                                 is_last ? deadline : Deadline::after(kBetweenLooks));
    } catch (CommError const& error) {
      if (error.code() != ErrorCode::timeout || is_last || *given_up) throw;
    }
  }
}

CheckpointGroup::Outcome CheckpointGroup::on_all(std::string const& what,
                                                 std::function<std::string()> const& action,
                                                 std::atomic<bool> const* given_up) const {
  Outcome outcome;
  for (std::string const& said : exchange(what, word_of(action), given_up)) {
    int code = kWell;
    std::string words;
    if (!(RecordReader(said) >> code >> words)) {
      throw CommError(ErrorCode::protocol, "a rank's word about a checkpoint is none");
    }
    if (code != kWell && !outcome.failure)
      outcome.failure = {outcome.results.size(), static_cast<ErrorCode>(code), words};
    outcome.results.push_back(std::move(words));
  }
  return outcome;
}

struct CheckpointWriter::Shared {
  CheckpointTask task;
  std::unique_ptr<CheckpointWriter> before;
  std::string label;  ///< for messages of the waiting side
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;      ///< complete, or failed
  bool finished = false;  ///< older ones are removed too
  std::exception_ptr failure;
  std::optional<DurableFolder> folder;  ///< the checkpoint's
  std::thread thread;                   ///< the waiting side's

  [[nodiscard]] std::filesystem::path checkpoint() const { return task.path / to_string(task.name); }

  [[nodiscard]] std::map<std::string, std::string> metadata() const {
    return {{"step", text(task.position.step)}};
  }

  /// On rank 0: makes the file that all ranks write together. Returns where it is.
  [[nodiscard]] std::string begin_divided(std::optional<DurableFile>& file) {
    if (!task.folder) return {};
    folder.emplace(checkpoint());
    file.emplace(*folder, task.divided->name);
    task.divided->snapshot->write_header(*file, metadata());
    return file->temporary();
  }

  /// On rank 0, when all ranks have written their parts. Nobody has all of them in memory, so the file is
  /// read for its checksum.
  [[nodiscard]] CheckpointFileRecord finish_divided(DurableFile& file) const {
    SequentialReader written(folder->path() / file.temporary());
    CheckpointFileRecord record{task.divided->name, written.size(), hash_of(written, &cancelled)};
    file.publish();
    return record;
  }

  /// `divided`: the file that all ranks write together, if there is one. Returns names, sizes and checksums
  /// of this rank's own files.
  [[nodiscard]] std::string write_mine(std::string const& divided) {
    std::string written;
    if (!folder) folder.emplace(checkpoint());
    if (task.divided) {
      UnfinishedFile file(*folder, divided);
      task.divided->snapshot->write_pieces(file, metadata(), cancelled);
    }
    for (auto const& [name, snapshot] : task.files) {
      auto const file = snapshot->write(*folder, name, metadata(), cancelled);
      written += record(file.name, file.bytes, file.sha256);
    }
    return written;
  }

  /// On rank 0, when all ranks have written: this makes it a checkpoint.
  void publish(std::vector<std::string> const& written, std::optional<DurableFile>& divided) {
    CheckpointManifest manifest{
        task.name.number, static_cast<int>(task.group.members.size()), task.position, {}};
    for (std::string const& each : written) {
      CheckpointFileRecord of_rank;
      RecordReader files(each);
      while (files >> of_rank.name >> of_rank.bytes >> of_rank.sha256) manifest.files.push_back(of_rank);
    }
    if (divided) manifest.files.push_back(finish_divided(*divided));
    std::string const json = to_json(manifest);
    static_cast<void>(parse_manifest(json));  // refuses what no rank may have said of its files
    DurableFile file(*folder, kManifestFile);
    file.write(std::as_bytes(std::span(json)));
    file.publish();
    task.folder->lead_to(task.name);
  }

  void write() {
    std::optional<DurableFile> divided;  // rank 0's
    CheckpointGroup::Outcome so_far;
    auto const all = [&](char const* what, std::function<std::string()> const& action) {
      if (!so_far.failure) so_far = task.group.on_all(what, action, &cancelled);
    };
    if (task.divided) all("/begun", [&] { return begin_divided(divided); });
    std::string const unfinished = task.divided && !so_far.failure ? so_far.results.front() : "";
    all("/written", [&] { return write_mine(unfinished); });
    std::vector<std::string> const written = so_far.results;
    all("/published", [&] {
      if (task.folder) publish(written, divided);
      return std::string();
    });
    if (!so_far.failure) return;
    auto const& first_failure = so_far.failure;
    if (task.folder) task.folder->discard(task.name);  // nobody writes there any more
    throw Error(ErrorCode::io,
                text("checkpoint ", checkpoint().string(), " was not written: rank ", first_failure->rank,
                     ": ", first_failure->reason, "; those before it are still there"));
  }
};

CheckpointWriter::CheckpointWriter(CheckpointTask task, std::unique_ptr<CheckpointWriter> before)
    : shared_(std::make_shared<Shared>()) {
  shared_->task = std::move(task);
  shared_->before = std::move(before);
  shared_->label = shared_->checkpoint().string();
  shared_->thread = start_thread_without_signals([shared = shared_] { run(*shared); });
}

void CheckpointWriter::run(Shared& shared) {
  auto const tell = [&](bool Shared::*what) {
    std::lock_guard const lock(shared.mutex);
    shared.*what = true;
    shared.changed.notify_all();
  };
  shared.before.reset();
  try {
    shared.write();
  } catch (...) {
    shared.failure = std::current_exception();
  }
  tell(&Shared::done);
  if (shared.task.folder && !shared.failure) shared.task.folder->prune(shared.task.keep);
  shared.folder.reset();
  shared.task = {};  // nothing of the program is used from here on
  tell(&Shared::finished);
}

CheckpointWriter::~CheckpointWriter() {
  bool finished = false;
  {
    std::unique_lock lock(shared_->mutex);
    if (!shared_->done) shared_->cancelled = true;
    finished = shared_->changed.wait_for(lock, shared_->done ? kTimeToTidy : kTimeToGiveUp,
                                         [&] { return shared_->finished; });
  }
  if (finished) {
    shared_->thread.join();
    return;
  }
  shared_->thread.detach();
  log(LogLevel::warning, "checkpoints: what is given up or removed takes too long: is the disk stuck?");
}

void CheckpointWriter::wait(Deadline deadline) {
  std::unique_lock lock(shared_->mutex);
  if (!PausingDeadline(deadline).wait(lock, shared_->changed, [&] { return shared_->done; })) {
    throw CommError(ErrorCode::timeout, text("checkpoint ", shared_->label, " is not on the disk after ",
                                             seconds(deadline.allowed()), " s: is the disk stuck?"));
  }
  if (shared_->failure) std::rethrow_exception(shared_->failure);
}

}  // namespace ddp

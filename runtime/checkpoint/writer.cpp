#include "checkpoint/writer.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/thread_without_signals.hpp"
#include "checkpoint/durable_file.hpp"
#include "core/patience.hpp"
#include "ddp/core/log.hpp"
#include "ddp/core/text.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kTimeToGiveUp{2000};
constexpr std::chrono::milliseconds kTimeToTidy{60000};

// What ranks said went wrong, or "".
std::string first_problem(std::vector<WrittenFiles> const& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].error.empty()) return text("rank ", rank, ": ", all[rank].error);
  }
  return {};
}

}  // namespace

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
  std::thread thread;  ///< the waiting side's

  [[nodiscard]] std::filesystem::path checkpoint() const { return task.path / to_string(task.name); }

  [[nodiscard]] WrittenFiles write_mine() {
    WrittenFiles written;
    try {
      make_durable_folder(checkpoint());
      for (auto const& [name, snapshot] : task.files) {
        written.files.push_back(
            snapshot->write(checkpoint(), name, {{"step", std::to_string(task.position.step)}}, cancelled));
      }
    } catch (std::exception const& error) {
      written.error = error.what();
    }
    return written;
  }

  /// Rank 0, when all ranks have written: from here on it is a checkpoint.
  [[nodiscard]] std::string publish(std::vector<WrittenFiles> const& all) {
    try {
      CheckpointManifest manifest{
          task.name.number, static_cast<int>(task.group.members.size()), task.position, {}};
      for (WrittenFiles const& each : all) {
        manifest.files.insert(manifest.files.end(), each.files.begin(), each.files.end());
      }
      DurableFile file(checkpoint() / kManifestFile);
      std::string const json = to_json(manifest);
      file.write(std::as_bytes(std::span(json)));
      file.publish();
    } catch (std::exception const& error) {
      return error.what();
    }
    task.folder->lead_to(task.name);
    return {};
  }

  void write() {
    std::vector<WrittenFiles> all;
    for (std::string const& word : task.group.all_gather("/written", to_json(write_mine()))) {
      all.push_back(parse_written_files(word));
    }
    std::string problem = first_problem(all);
    if (problem.empty()) {
      WrittenFiles mine;
      if (task.folder) mine.error = publish(all);
      problem = parse_written_files(task.group.all_gather("/published", to_json(mine)).front()).error;
      if (!problem.empty()) problem = "rank 0: " + problem;
    }
    if (problem.empty()) return;
    if (task.folder) task.folder->discard(task.name);  // nobody writes there any more
    throw Error(ErrorCode::io, text("checkpoint ", checkpoint().string(), " was not written: ", problem,
                                    "; those before it are still there"));
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
  if (!Patience(deadline).wait(lock, shared_->changed, [&] { return shared_->done; })) {
    throw CommError(ErrorCode::timeout, text("checkpoint ", shared_->label, " is not on the disk after ",
                                             seconds(deadline.allowed()), " s: is the disk stuck?"));
  }
  if (shared_->failure) std::rethrow_exception(shared_->failure);
}

}  // namespace ddp

// Ranks that are threads of one process.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/control_client.hpp"
#include "bootstrap/control_store.hpp"
#include "bootstrap/notices.hpp"
#include "bootstrap/pending_requests.hpp"

namespace ddp {

/// What the control planes of one in-process job share. For tests: lose a rank by hand.
class InProcessJob : public std::enable_shared_from_this<InProcessJob> {
 public:
  /// `min_ranks`: ControlStore::Limits::min_ranks.
  explicit InProcessJob(int size, int min_ranks = 0)
      : store_(size, {.min_ranks = min_ranks}), notices_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const noexcept { return store_.size(); }
  /// One control plane for each rank; they keep the job alive.
  [[nodiscard]] std::vector<std::shared_ptr<ControlPlane>> control_planes();
  /// As if another process had been started for that rank, which was lost, for the `replacement`th time.
  [[nodiscard]] std::shared_ptr<ControlPlane> newcomer(Rank rank, int replacement);
  /// As if the rank's process had ended: waits for it fail, and lost() names it. Any thread.
  void declare_lost(Failure const& lost);

 private:
  friend class InProcessControl;
  /// Calls change(store), and brings its answers to those who wait.
  template <class Change>
  void apply(Change const& change) {
    std::lock_guard const lock(mutex_);
    for (ControlStore::Answer& answer : change(store_)) {
      auto const request = answer.to.number;
      pending_.answer(request, std::move(answer));
    }
  }

  [[nodiscard]] std::vector<Rank> awaited_by(ControlStore::Ticket ticket) {
    std::lock_guard const lock(mutex_);
    return store_.awaited_by(ticket);
  }

  std::mutex mutex_;  ///< of store_; goes before that of pending_
  ControlStore store_;
  PendingRequests<ControlStore::Answer> pending_;
  std::vector<Notices> notices_;  ///< by the rank that they came to
};

/// Reports nothing to a launcher: an exception of a thread reaches whoever joins the thread.
class InProcessControl : public ControlClient {
 public:
  InProcessControl(std::shared_ptr<InProcessJob> job, Rank rank, int replacement = 0)
      : ControlClient(rank, job->size()), job_(std::move(job)), replacement_(replacement) {}

  [[nodiscard]] std::vector<Failure> lost() const override;
  [[nodiscard]] std::optional<Failure> interruption() const override;
  void notify(std::span<Rank const> to, std::string_view name, std::string_view bytes) override;
  [[nodiscard]] std::shared_ptr<void> listen(std::string_view name, Listener const& listener) override;
  void leave() noexcept override;
  [[nodiscard]] RankInfo completed(RankInfo info) const override {
    info.replacement = replacement_;
    return info;
  }

 protected:
  [[nodiscard]] Outcome ask(wire::Frame request, Deadline deadline) override;

 private:
  std::shared_ptr<InProcessJob> job_;
  int replacement_;
};

/// A process started alone: a job of one rank, whose errors go to the error file only.
class SoloControl final : public InProcessControl {
 public:
  /// Writes errors to `error_file`; empty for nowhere.
  explicit SoloControl(std::string error_file)
      : InProcessControl(std::make_shared<InProcessJob>(1), Rank{0}), error_file_(std::move(error_file)) {}
  void report_error(Failure const& failure) noexcept override;

 private:
  std::string error_file_;
};

}  // namespace ddp

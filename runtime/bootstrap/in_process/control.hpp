// Ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/control_client.hpp"
#include "bootstrap/control_store.hpp"

namespace ddp {

/// What the control planes of one in-process job share. For tests: lose a rank by hand.
class InProcessJob : public std::enable_shared_from_this<InProcessJob> {
 public:
  explicit InProcessJob(int size) : rendezvous_(size) {}

  [[nodiscard]] int size() const noexcept { return rendezvous_.size(); }
  /// One control plane for each rank; they keep the job alive.
  [[nodiscard]] std::vector<std::shared_ptr<ControlPlane>> control_planes();
  /// As if the rank's process had ended: waits that need it fail, lost() holds it. Any thread.
  void declare_lost(LostRank const& lost);

 private:
  friend class InProcessControl;
  /// One request that waits for its answer: registered for as long as it lives. The mutex is held whenever it
  /// is touched.
  class Waiter {
   public:
    explicit Waiter(InProcessJob& job);
    ~Waiter();
    Waiter(Waiter const&) = delete;
    Waiter& operator=(Waiter const&) = delete;
    [[nodiscard]] std::uint64_t request() const noexcept { return request_; }

    std::condition_variable answered;
    std::optional<ControlStore::Answer> answer;

   private:
    InProcessJob& job_;
    std::uint64_t request_;
  };

  void deliver(ControlStore::Answers answers);

  std::mutex mutex_;
  ControlStore rendezvous_;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, Waiter*> waiters_;  ///< by request
};

/// Nobody watches a thread: its exception reaches whoever joins it.
class InProcessControl : public ControlClient {
 public:
  InProcessControl(std::shared_ptr<InProcessJob> job, Rank rank)
      : ControlClient(rank, job->size()), job_(std::move(job)) {}

  [[nodiscard]] std::vector<LostRank> lost() const override;
  void leave() noexcept override;

 protected:
  [[nodiscard]] Outcome ask(Request const& request, Deadline deadline) override;

 private:
  std::shared_ptr<InProcessJob> job_;
};

/// A process started alone: a job of one rank, and nobody who watches but the error file.
class SoloControl final : public InProcessControl {
 public:
  /// Writes errors to `error_file`; empty for nowhere.
  explicit SoloControl(std::string error_file)
      : InProcessControl(std::make_shared<InProcessJob>(1), Rank{0}), error_file_(std::move(error_file)) {}
  void report_error(ErrorCode code, std::string_view message) noexcept override;

 private:
  std::string error_file_;
};

}  // namespace ddp

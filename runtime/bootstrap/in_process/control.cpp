#include "bootstrap/in_process/control.hpp"

#include "bootstrap/failure_json.hpp"
#include "core/pausing_deadline.hpp"
#include "ddp/core/log.hpp"

namespace ddp {

std::vector<std::shared_ptr<ControlPlane>> InProcessJob::control_planes() {
  std::vector<std::shared_ptr<ControlPlane>> planes;
  for (int r = 0; r < size(); ++r) {
    planes.push_back(std::make_shared<InProcessControl>(shared_from_this(), Rank{r}));
  }
  return planes;
}

std::shared_ptr<ControlPlane> InProcessJob::newcomer(Rank rank, int replacement) {
  std::lock_guard const lock(mutex_);
  store_.come_back(rank);
  return std::make_shared<InProcessControl>(shared_from_this(), rank, replacement);
}

void InProcessJob::declare_lost(Failure const& lost) {
  apply([&](ControlStore& store) { return store.lose(lost); });
}

std::vector<Failure> InProcessControl::lost() const {
  std::lock_guard const lock(job_->mutex_);
  std::vector<Failure> all = job_->store_.lost();
  if (job_->store_.is_newcomer(rank()))
    std::erase_if(all, [this](Failure const& lost) { return lost.ranks.front() == rank(); });
  return all;
}

std::optional<Failure> InProcessControl::interruption() const {
  std::lock_guard const lock(job_->mutex_);
  return job_->store_.interruption(rank());
}

void InProcessControl::notify(std::span<Rank const> to, std::string_view name, std::string_view bytes) {
  for (Rank const other : to) {
    job_->notices_.at(other.index()).deliver(std::string(name), rank(), std::string(bytes));
  }
}

std::shared_ptr<void> InProcessControl::listen(std::string_view name, Listener const& listener) {
  return job_->notices_[rank().index()].listen(name, listener);
}

void InProcessControl::leave() noexcept {
  try {
    job_->declare_lost(has_left(rank()));
  } catch (std::exception const& error) {
    log(LogLevel::error, error.what());
  }
}

ControlClient::Outcome InProcessControl::ask(wire::Frame request, Deadline deadline) {
  PendingRequests<ControlStore::Answer>::Waiter waiter(job_->pending_);
  request.request = waiter.number();
  job_->apply([&](ControlStore& store) { return *store.handle(rank(), request); });
  if (!waiter.wait(PausingDeadline(deadline))) {
    ControlStore::Ticket const ticket{rank(), waiter.number()};
    for (Rank const late : job_->awaited_by(ticket)) job_->declare_lost(missed_rebuild(late));
    job_->apply([&](ControlStore& store) { return store.withdraw(ticket); });
  }
  ControlStore::Answer answer = waiter.take();
  Outcome outcome{std::move(answer.failure), {}};
  for (ControlStore::Value const& value : answer.values) outcome.values.push_back(*value);
  return outcome;
}

void SoloControl::report_error(Failure const& failure) noexcept {
  write_error_file(error_file_, rank(), failure);
}

std::vector<std::shared_ptr<ControlPlane>> make_in_process_control(int size) {
  return std::make_shared<InProcessJob>(size)->control_planes();
}

}  // namespace ddp

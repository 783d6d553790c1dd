#include "bootstrap/in_process/control.hpp"

#include "bootstrap/error_file.hpp"
#include "core/patience.hpp"
#include "ddp/core/log.hpp"

namespace ddp {

std::vector<std::shared_ptr<ControlPlane>> InProcessJob::control_planes() {
  std::vector<std::shared_ptr<ControlPlane>> planes;
  for (int r = 0; r < size(); ++r) {
    planes.push_back(std::make_shared<InProcessControl>(shared_from_this(), Rank{r}));
  }
  return planes;
}

void InProcessJob::declare_lost(LostRank const& lost) {
  std::lock_guard const lock(mutex_);
  deliver(rendezvous_.lose(lost));
}

// The mutex is held.
void InProcessJob::deliver(ControlStore::Answers answers) {
  for (ControlStore::Answer& answer : answers) {
    auto const waiter = waiters_.find(answer.to.number);
    if (waiter == waiters_.end()) continue;
    waiter->second->answer = std::move(answer);
    waiter->second->answered.notify_one();
  }
}

std::vector<LostRank> InProcessControl::lost() const {
  std::lock_guard const lock(job_->mutex_);
  return job_->rendezvous_.lost();
}

void InProcessControl::leave() noexcept {
  try {
    job_->declare_lost({rank(), LostRank::Manner::left, "left the group"});
  } catch (std::exception const& error) {
    log(LogLevel::error, error.what());
  }
}

InProcessJob::Waiter::Waiter(InProcessJob& job) : job_(job), request_(job.next_request_++) {
  job_.waiters_.emplace(request_, this);
}

InProcessJob::Waiter::~Waiter() { job_.waiters_.erase(request_); }

ControlClient::Outcome InProcessControl::ask(Request const& request, Deadline deadline) {
  InProcessJob& job = *job_;
  std::optional<ControlStore::Answer> answer;
  {
    std::unique_lock lock(job.mutex_);
    InProcessJob::Waiter waiter(job);
    ControlStore::Ticket const ticket{rank(), waiter.request()};
    switch (request.kind) {
      case Request::Kind::put:
        job.deliver(job.rendezvous_.put(ticket, request.key, std::string(request.value)));
        break;
      case Request::Kind::get:
        job.deliver(job.rendezvous_.get(ticket, request.key));
        break;
      case Request::Kind::all_gather:
        job.deliver(
            job.rendezvous_.all_gather(ticket, request.key, request.group, std::string(request.value)));
        break;
    }
    if (!Patience(deadline).wait(lock, waiter.answered, [&] { return waiter.answer.has_value(); })) {
      job.deliver(job.rendezvous_.withdraw(ticket));
    }
    answer = std::move(waiter.answer);
  }
  Outcome outcome{std::move(answer->failure), {}};
  for (ControlStore::Value const& value : answer->values) outcome.values.push_back(*value);
  return outcome;
}

void SoloControl::report_error(ErrorCode code, std::string_view message) noexcept {
  write_error_file(error_file_, rank(), code, message);
}

std::vector<std::shared_ptr<ControlPlane>> make_in_process_control(int size) {
  return std::make_shared<InProcessJob>(size)->control_planes();
}

}  // namespace ddp

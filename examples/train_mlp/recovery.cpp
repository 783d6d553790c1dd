#include "train_mlp/recovery.hpp"

#include <cstring>
#include <iostream>
#include <utility>

#include "ddp/core/text.hpp"

namespace train_mlp {
namespace {

EarlyEnd end_of(ddp::Error const& error) {
  switch (error.code()) {
    case ddp::ErrorCode::mismatch:
      return {kExitDamagedInput, error.what()};
    case ddp::ErrorCode::invalid_state:
    case ddp::ErrorCode::unsupported:
      return {kExitCannotCreate, error.what()};
    default:
      return {kExitIo, error.what()};
  }
}

}  // namespace

Recovery::Recovery(ddp::World const& world, Options const& options,
                   std::map<std::string, std::string> choices, Progress& progress)
    : world_(world), options_(options), choices_(std::move(choices)), progress_(progress) {}

std::optional<EarlyEnd> Recovery::begin(ddp::CheckpointTensors const& tensors) {
  if (options_.checkpoint.empty()) return std::nullopt;
  stop_.emplace(world_);
  try {
    checkpoint_.emplace(world_, options_.checkpoint, tensors);
    if (!options_.resume && !checkpoint_->newest().empty()) {
      return EarlyEnd{
          kExitCannotCreate,
          ddp::text("--checkpoint ", options_.checkpoint.string(), " holds ", checkpoint_->newest(),
                    " of another run: --resume goes on from it; otherwise name another folder")};
    }
    auto const restored = options_.resume ? checkpoint_->restore() : std::nullopt;
    if (restored) {
      position_ = restored->position;
      for (auto const& [name, value] : choices_) {
        if (position_.metadata[name] == value) continue;
        return EarlyEnd{kExitDamagedInput, ddp::text("--resume: ", restored->name, " was made with ", name,
                                                     " ", position_.metadata[name], ", this run has ", value,
                                                     "; expected the same, so that it is one training")};
      }
      progress_.print(ddp::text("resumed from ", restored->name, ", epoch ", position_.epoch, ", of ",
                                restored->ranks, " ranks"));
    } else if (options_.shard && options_.survive) {
      membership_ = -1;  // none: go_on() saves
    }
  } catch (ddp::CommError const&) {
    throw;
  } catch (ddp::Error const& error) {
    return end_of(error);
  }
  return std::nullopt;
}

ddp::TrainingPosition const& Recovery::go_back(ddp::CheckpointTensors const& tensors) {
  checkpoint_.reset();  // before another one wants the folder
  checkpoint_.emplace(world_, options_.checkpoint, tensors);
  auto const restored = checkpoint_->restore();
  if (!restored) {
    throw ddp::Error(
        ddp::ErrorCode::invalid_state,
        "train_mlp: a rank was lost before the first checkpoint was complete, and of its part of "
        "the optimizer there is no copy");
  }
  membership_ = world_.membership();
  position_ = restored->position;
  return position_;
}

bool Recovery::due(std::uint64_t step, bool epoch_ends, bool training_ends) {
  if (!checkpoint_) return false;
  stopped_by_ = stop_->after_step();
  bool const by_plan = options_.checkpoint_every ? step % *options_.checkpoint_every == 0 : epoch_ends;
  return by_plan || training_ends || stopped_by_;
}

std::optional<EarlyEnd> Recovery::save(ddp::TrainingPosition position) {
  for (auto const& [name, value] : choices_) position.metadata[name] = value;
  for (bool again = true; again;) {
    again = false;
    try {
      checkpoint_->save(position);
    } catch (ddp::CommError const&) {
      throw;
    } catch (ddp::Error const& error) {
      // The one before failed; training goes on, since an older one is still there.
      if (world_.rank() == 0) std::cerr << "train_mlp: " << error.what() << '\n';
      again = true;
    }
  }
  if (!stopped_by_) return std::nullopt;
  if (auto const failed = finish()) return failed;
  int const signal = *stopped_by_;
  return EarlyEnd{128 + signal,
                  ddp::text("stopped by SIG", sigabbrev_np(signal), " after step ", position.step,
                            ", saved as ", checkpoint_->newest(), "; --resume goes on from there")};
}

std::optional<EarlyEnd> Recovery::go_on(ddp::TrainingPosition const& position) {
  if (!checkpoint_ || membership_ == world_.membership()) return std::nullopt;
  stopped_by_.reset();  // after_step() tells it again
  auto end = save(position);
  membership_ = world_.membership();
  return end;
}

std::optional<EarlyEnd> Recovery::finish() {
  if (!checkpoint_) return std::nullopt;
  try {
    checkpoint_->wait();
  } catch (ddp::CommError const&) {
    throw;
  } catch (ddp::Error const& error) {
    return end_of(error);
  }
  return std::nullopt;
}

}  // namespace train_mlp

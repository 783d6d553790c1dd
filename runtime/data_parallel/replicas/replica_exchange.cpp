// How values and gradients travel between the replicas of a ReplicaSet.
#include <exception>
#include <string>
#include <utility>

#include "data_parallel/replicas/direct_exchange.hpp"
#include "data_parallel/replicas/replica_set.hpp"
#include "data_parallel/try_or_log.hpp"
#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "device/memory/block_copy.hpp"

namespace ddp {

void ReplicaSet::connect(std::chrono::milliseconds timeout) {
  auto const devices = threads_.devices();
  CommunicatorOptions options;
  options.timeout = timeout;
  options.timeout_setting = "DataParallelOptions::timeout";
  int const ranks = static_cast<int>(size());
  if (devices[0].kind == DeviceKind::cpu) {
    auto made = make_in_process_communicators(ranks, options);
    for (std::size_t i = 0; i < size(); ++i) replicas_[i].communicator = std::move(made[i]);
    return;
  }
  auto const control = make_in_process_control(ranks);
  for (std::size_t i = 0; i < size(); ++i) replicas_[i].control = control[i];
  threads_.run(size(), [&](std::size_t i) {
    replicas_[i].communicator = make_communicator(control[i], devices[i], options);
  });
}

std::string_view ReplicaSet::backend() const noexcept {
  if (size() == 1) return "none";
  return direct_ ? "direct" : replicas_[0].communicator->backend();
}

TensorView ReplicaSet::as_sent(Replica const& replica, TensorView message) const {
  message.device = replica.communicator->device();
  return message;
}

template <class Enqueue>
void ReplicaSet::together(std::size_t replica, Stream& messages, Enqueue const& enqueue) {
  try {
    enqueue();
  } catch (std::exception const& error) {
    std::string const reason = text("replica ", replica, " failed: ", error.what());
    for (Replica const& each : replicas_) each.communicator->abort(reason);
    try_or_log([&] { stream(replica).wait(messages); });
    throw;
  }
}

void ReplicaSet::refresh() {
  if (size() == 1) return;
  if (direct_) {
    threads_.run(1, [this](std::size_t) { copy_values(); });
  } else {
    threads_.run(size(), [this](std::size_t i) { broadcast_values(i); });
  }
}

// With packs_ahead_: large tensors first, in one group, while the first pack is filled; then each pack.
void ReplicaSet::broadcast_values(std::size_t replica) {
  Replica& mine = replicas_[replica];
  Stream& messages = packs_ahead_ ? *mine.message_stream : stream(replica);
  auto const all = mine.values.messages();
  auto const goes_ahead = [&](std::size_t m) { return packs_ahead_ && value_layout_.messages[m].packed; };
  auto const send = [&](std::size_t m) {
    if (all[m].count() != 0) mine.communicator->broadcast(as_sent(mine, all[m]), Rank{0}, messages);
  };
  if (packs_ahead_) messages.wait(stream(replica));
  together(replica, messages, [&] {
    if (replica == 0 && !packs_ahead_) mine.values.pack(stream(replica));
    mine.communicator->group([&] {
      for (std::size_t m = 0; m < all.size(); ++m) {
        if (!goes_ahead(m)) send(m);
      }
    });
    for (std::size_t m = 0; m < all.size(); ++m) {
      if (!goes_ahead(m)) continue;
      if (replica == 0) {
        mine.values.pack(m, stream(replica));
        messages.wait(stream(replica));
      }
      send(m);
      mine.arrived[m].record(messages);
    }
  });
}

// Replica 0 writes nothing before the others have read it.
void ReplicaSet::copy_values() {
  replicas_[0].values.pack(stream(0));
  auto const from = replicas_[0].values.messages();
  for (std::size_t i = 1; i < size(); ++i) {
    stream(i).wait(stream(0));
    auto const to = replicas_[i].values.messages();
    for (std::size_t m = 0; m < to.size(); ++m) copy_whole(to[m], from[m], stream(i));
  }
  lead_primary();
}

void ReplicaSet::reduce_gradients() {
  if (size() == 1) return;
  if (direct_) {
    threads_.run(1, [this](std::size_t) { add_gradients(); });
  } else {
    threads_.run(size(), [this](std::size_t i) { reduce_gradients_of(i); });
  }
  threads_.run(1, [this](std::size_t) { replicas_[0].gradients.unpack(stream(0)); });
}

void ReplicaSet::reduce_gradients_of(std::size_t replica) {
  Replica& mine = replicas_[replica];
  Stream& messages = *mine.message_stream;
  together(replica, messages, [&] {
    auto const& buckets = backward_plan_->buckets;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      mine.progress->block(b, messages);
      mine.communicator->group([&] {
        for (std::size_t const message : buckets[b].messages) {
          TensorView const sent = as_sent(mine, mine.gradients.messages()[message]);
          TensorView const nowhere{nullptr, {0}, sent.dtype, sent.device};
          mine.communicator->reduce(sent, replica == 0 ? sent : nowhere, ReduceOp::sum(), Rank{0}, messages);
        }
      });
    }
  });
  stream(replica).wait(messages);
}

// All streams wait for it, since later work of replicas 1, 2, … may write memory that this reads.
void ReplicaSet::add_gradients() {
  Stream& messages = *replicas_[0].message_stream;
  auto const& buckets = backward_plan_->buckets;
  try {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (Replica& replica : replicas_) replica.progress->block(b, messages);
      for (std::size_t const message : buckets[b].messages) {
        std::vector<TensorView> others;
        for (std::size_t i = 1; i < size(); ++i) others.push_back(replicas_[i].gradients.messages()[message]);
        direct_->add(replicas_[0].gradients.messages()[message], others, messages);
      }
    }
  } catch (...) {
    for (std::size_t i = 0; i < size(); ++i) try_or_log([&] { stream(i).wait(messages); });
    throw;
  }
  for (std::size_t i = 0; i < size(); ++i) stream(i).wait(messages);
}

}  // namespace ddp

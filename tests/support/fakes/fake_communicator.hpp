// A communicator of one rank among others that are only made up.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator_backend.hpp"
#include "ddp/core/text.hpp"
#include "ddp/device/stream.hpp"

namespace ddp::testing {

/// Rank 0 of `size`. Operations run on their stream at their turn, as if the other ranks had given the same,
/// until `others` changes what comes out.
class FakeCommunicator final : public CommunicatorBackend {
 public:
  explicit FakeCommunicator(int size) : CommunicatorBackend(Rank{0}, size, Device{}) {}

  [[nodiscard]] std::string_view backend() const noexcept override { return "fake"; }
  [[nodiscard]] Tensor allocate(Bytes bytes) override { return Tensor::zeros(Shape{bytes.value}, DType::u8); }
  void check_health() const override {}
  void abort(std::string_view reason) noexcept override { aborted = reason; }

  /// What was called, as "all_reduce f32[4] average"; those of a group are in parentheses.
  std::vector<std::string> calls;
  /// What other ranks give: gets what comes out of an all_reduce or an all_gather.
  std::function<void(std::string const& call, TensorView const& out)> others;
  std::string aborted;

 protected:
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override {
    return std::make_unique<FakeCommunicator>(static_cast<int>(ranks.size()));
  }
  void enqueue(std::span<Operation const> operations, Stream& stream) override {
    std::string all;
    for (Operation const& each : operations) {
      bool const gathers = each.kind == OperationKind::all_gather;
      bool const reduces = each.kind == OperationKind::all_reduce;
      std::string const call = text(gathers   ? "all_gather "
                                    : reduces ? "all_reduce "
                                              : "",
                                    to_string(each.dtype), "[", each.count, "]",
                                    reduces ? text(" ", to_string(each.op.kind)) : "");
      all += text(all.empty() ? "" : ", ", gathers || reduces ? call : "barrier");
      if (!gathers && !reduces) continue;
      std::size_t const copies = gathers ? static_cast<std::size_t>(size()) : 1;
      Enqueued const& work = work_.emplace_back(Enqueued{this, call, each.in, view(each, each.count * copies),
                                                         each.count * size_of(each.dtype), copies});
      host_stream(stream).enqueue([&work] { work.run(); });
    }
    calls.push_back(operations.size() > 1 ? text("(", all, ")") : all);
  }

 private:
  struct Enqueued {
    FakeCommunicator* communicator;
    std::string call;
    void const* in;
    TensorView out;
    std::size_t bytes;
    std::size_t copies;
    void run() const {
      for (std::size_t r = 0; r < copies; ++r) {
        auto* const to = static_cast<std::byte*>(out.data) + r * bytes;
        if (to != in) std::memcpy(to, in, bytes);
      }
      if (communicator->others) communicator->others(call, out);
    }
  };
  static TensorView view(Operation const& operation, std::size_t count) {
    return {operation.out, Shape{count}, operation.dtype, Device{}};
  }
  std::deque<Enqueued> work_;
};

}  // namespace ddp::testing

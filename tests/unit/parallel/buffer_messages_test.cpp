// R10: how many messages buffers travel in.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator_backend.hpp"
#include "ddp/comm/factory.hpp"
#include "ddp/core/text.hpp"
#include "parallel/ddp/buffer_sync.hpp"
#include "support/devices/virtual_cpus.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

auto* const kCpus = VirtualCpus::before_all_tests(2);

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Passes everything on, and keeps what it was: a line for each operation or group.
class Written final : public CommunicatorBackend {
 public:
  explicit Written(std::unique_ptr<Communicator> inner)
      : CommunicatorBackend(inner->rank(), inner->size(), inner->device()), inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return inner_->backend(); }
  [[nodiscard]] Tensor allocate(Bytes bytes) override { return inner_->allocate(bytes); }
  void check_health() const override { inner_->check_health(); }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

  std::vector<std::vector<std::string>> groups;

 private:
  void enqueue(std::span<Operation const> operations, Stream& stream) override {
    std::vector<std::string> said;
    for (Operation const& each : operations) said.push_back(text(to_string(each.kind), " of ", each.dtype));
    groups.push_back(std::move(said));
    backend_of(*inner_).enqueue(operations, stream);
  }
  [[nodiscard]] std::unique_ptr<Communicator> split_off(std::span<Rank const> ranks) override {
    return inner_->split(ranks);
  }

  std::unique_ptr<Communicator> inner_;
};

// Where gradients of a device would be reduced.
struct WrittenLane {
  WrittenLane(World world, Device device)
      : communicator(
            make_communicator(world.shared_control(), world.next_name("lane"), world.members(), device, {})),
        compute(make_compute_stream(device)),
        comm(make_comm_stream(device)) {}
  [[nodiscard]] ReducerLane lane() {
    return {communicator.device(), &communicator, compute.get(), comm.get()};
  }
  // Since the last call.
  [[nodiscard]] std::vector<std::vector<std::string>> groups() {
    comm->synchronize();
    return std::exchange(communicator.groups, {});
  }

  Written communicator;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> comm;
};

// On each of two devices three buffers of each type, and on the first one more, without elements.
class ManyBuffers {
 public:
  static constexpr std::size_t kOfAKind = 3;
  [[nodiscard]] std::vector<NamedTensor> list() {
    std::vector<NamedTensor> all;
    for (int const device : {0, 1}) {
      for (DType const dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64, DType::u8}) {
        for (std::size_t i = 0; i < kOfAKind; ++i) {
          memory_.push_back(std::make_unique<std::vector<std::uint64_t>>(100));
          all.push_back({text("b", all.size()), TensorView{memory_.back()->data(), Shape{7 + 20 * i}, dtype,
                                                           Device{DeviceKind::cpu, DeviceIndex{device}}}});
        }
      }
      if (device == 0) all.push_back({"empty", TensorView{nullptr, Shape{0}, DType::i32, Device{}}});
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::uint64_t>>> memory_;
};

// Calls body(buffers, first, second, send) on two ranks: lanes of both devices.
template <class Body>
void with_many_buffers(BufferSync how, Body body) {
  on_ranks(2, [&](World const& world) {
    WrittenLane first(world, Device{});
    WrittenLane second(world, Device{DeviceKind::cpu, DeviceIndex{1}});
    std::vector<ReducerLane> const lanes{first.lane(), second.lane()};
    ManyBuffers many;
    MarkedBuffers buffers(many.list(), how, lanes);
    static_cast<void>(first.groups());
    static_cast<void>(second.groups());
    body(buffers, first, second, [&] { buffers.send(lanes); });
  });
}

TEST(Buffers, R10ADevicesBuffersOfAllTypesAreBroadcastInOneMessage) {
  with_many_buffers(BufferSync::broadcast, [](auto& buffers, auto& first, auto& second, auto const& send) {
    auto const one = ElementsAre(ElementsAre("broadcast of u8"));
    for (int step = 0; step < 3; ++step) {
      buffers.mark_all();
      send();
      EXPECT_THAT(first.groups(), one);
      EXPECT_THAT(second.groups(), one);
    }
    for (std::size_t b = 0; b < 2 * ManyBuffers::kOfAKind; ++b) buffers.mark(b);  // two types of one device
    send();
    EXPECT_THAT(first.groups(), one);
    EXPECT_THAT(second.groups(), IsEmpty());
    send();  // nothing has changed
    EXPECT_THAT(first.groups(), IsEmpty());
    EXPECT_THAT(second.groups(), IsEmpty());
  });
}

// What cannot be averaged travels as bytes.
TEST(Buffers, R10ADevicesBuffersAreAveragedInOneMessageForEachTypeAndOneForTheRestAllInOneGroup) {
  with_many_buffers(BufferSync::average, [](auto& buffers, auto& first, auto& second, auto const& send) {
    auto const all =
        ElementsAre(UnorderedElementsAre("all_reduce of f32", "all_reduce of f64", "all_reduce of f16",
                                         "all_reduce of bf16", "broadcast of u8"));
    for (int step = 0; step < 3; ++step) {
      buffers.mark_all();
      send();
      EXPECT_THAT(first.groups(), all);
      EXPECT_THAT(second.groups(), all);
    }
    for (std::size_t b = 0; b < 2 * ManyBuffers::kOfAKind; ++b) buffers.mark(b);
    send();
    EXPECT_THAT(first.groups(), ElementsAre(UnorderedElementsAre("all_reduce of f32", "all_reduce of f64")));
    EXPECT_THAT(second.groups(), IsEmpty());
    std::size_t const empty = 6 * ManyBuffers::kOfAKind;
    buffers.mark(empty);
    buffers.mark(empty + 1);  // the first of the other device
    send();
    EXPECT_THAT(first.groups(), IsEmpty());
    EXPECT_THAT(second.groups(), ElementsAre(ElementsAre("all_reduce of f32")));
  });
}

TEST(Buffers, R10ThoseThatAreNeverSentTakeNoMessage) {
  with_many_buffers(BufferSync::never, [](auto& buffers, auto& first, auto& second, auto const& send) {
    buffers.mark_all();
    send();
    EXPECT_THAT(first.groups(), IsEmpty());
    EXPECT_THAT(second.groups(), IsEmpty());
  });
}

}  // namespace
}  // namespace ddp::testing

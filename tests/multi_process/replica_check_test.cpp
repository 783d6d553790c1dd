// R17 and F12: a rank whose weights differ is found.
#include <gmock/gmock.h>

#include <bit>

#include "ddp/core/text.hpp"
#include "support/models/own_reducer.hpp"
#include "support/ranks/in_process_worlds.hpp"

namespace ddp::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<std::size_t> const kCheckedCounts{40'000, 3, 700};

template <class T>
void flip_last_bit(TensorView const& value, std::size_t element) {
  auto const one = slice(value, element, 1);
  T found{};
  copy_elements(view_of(std::span(&found, 1)), one, world().stream());
  world().stream().synchronize();
  if constexpr (sizeof(T) == 2) {
    found.bits = static_cast<std::uint16_t>(found.bits ^ 1U);
  } else {
    found = std::bit_cast<T>(std::bit_cast<std::uint32_t>(found) ^ 1U);
  }
  copy_elements(one, view_of(std::span(&found, 1)), world().stream());
  world().stream().synchronize();
}

template <class T>
void find_a_flipped_bit(std::size_t parameter, std::size_t element) {
  DeviceToy<T> model(world(), kCheckedCounts);
  DistributedDataParallelOptions options;
  options.verify_every = 2;
  OwnReducer reducer(model, options);
  reducer.train();  // makes weights equal, which a Reducer alone does not
  reducer.train();
  reducer.wait();
  int const odd = world().size() - 1;
  if (world().rank().value() == odd) flip_last_bit<T>(reducer->parameters()[parameter].value, element);
  reducer.step(kCheckedCounts.size());  // not looked at
  auto const messages = gathered(message_of([&] { reducer.step(kCheckedCounts.size()); }));
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0],
              AllOf(HasSubstr("after synchronised step 3 ranks do not have the same weights"),
                    HasSubstr(text("parameter ", parameter, " \"p", parameter, "\" on rank ", odd,
                                   world().size() == 2 ? " is not that of rank 0" : ". "))));
}

TEST(ReplicaCheck, R17F12AFlippedBitIsNamedWithParameterAndRank) {
  if (world().size() == 1) return;  // there is nobody to differ from
  for (std::size_t const parameter : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    find_a_flipped_bit<float>(parameter, kCheckedCounts[parameter] - 1);
  }
  find_a_flipped_bit<float>(0, 0);
  find_a_flipped_bit<bfloat16>(0, 20'001);
}

TEST(ReplicaCheck, R17EqualWeightsPassAndValuesThatChangePlacesDoNot) {
  DeviceToy<float> model(world(), kCheckedCounts);
  DistributedDataParallelOptions options;
  options.verify_every = 2;
  OwnReducer reducer(model, options);
  for (int step = 0; step < 5; ++step) reducer.train();
  reducer.wait();
  // The same numbers in another order.
  std::vector<float> numbers{1, 2, 3};
  if (world().rank().value() == world().size() - 1) std::swap(numbers[0], numbers[2]);
  copy_elements(reducer->parameters()[1].value, view_of(std::span(numbers)), world().stream());
  world().stream().synchronize();
  if (world().size() == 1) {
    reducer.step(kCheckedCounts.size());
    return;
  }
  EXPECT_THAT(gathered(message_of([&] { reducer.step(kCheckedCounts.size()); })),
              Each(HasSubstr("parameter 1 \"p1\" on rank")));
}

}  // namespace
}  // namespace ddp::testing

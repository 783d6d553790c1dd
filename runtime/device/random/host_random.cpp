#include "device/random/host_random.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

namespace ddp {
namespace {

template <class T>
void fill_uniform_of(T* data, std::size_t count, RandomFill const& how) {
  auto const low = static_cast<Wide<T>>(how.first);
  auto const high = static_cast<Wide<T>>(how.second);
  Wide<T> const width = high - low;
  for (std::size_t i = 0; i < count; i += kPerBlock<T>) {
    PhiloxBlock const block = how.source.block(i / kPerBlock<T>);
    for (std::size_t j = 0; j < std::min(kPerBlock<T>, count - i); ++j) {
      // Rounded once, as on a GPU. Rounding up may give `high`, which is not in [low, high).
      Wide<T> const value = std::fma(unit<T>(block, j), width, low);
      data[i + j] = static_cast<T>(value < high ? value : low);
    }
  }
}

template <class T>
void fill_normal_of(T* data, std::size_t count, RandomFill const& how) {
  for (std::size_t i = 0; i < count; i += kPerBlock<T>) {
    PhiloxBlock const block = how.source.block(i / kPerBlock<T>);
    for (std::size_t j = 0; j < std::min(kPerBlock<T>, count - i); ++j) {
      auto const [radius, angle] = unit_pair<T>(block, j & ~std::size_t{1});
      double const turn = 2 * std::numbers::pi * angle;
      double const unit_normal =
          std::sqrt(-2 * std::log(radius)) * (j % 2 == 0 ? std::cos(turn) : std::sin(turn));
      data[i + j] = static_cast<T>(static_cast<Wide<T>>(std::fma(unit_normal, how.second, how.first)));
    }
  }
}

}  // namespace

void fill_random(void* data, std::size_t count, DType dtype, RandomFill const& how) {
  dispatch(dtype, [&]<class T>(T /*type*/) {
    if constexpr (std::is_integral_v<T>) {
      return;  // refused before
    } else if (how.kind == RandomFill::Kind::uniform) {
      fill_uniform_of(static_cast<T*>(data), count, how);
    } else {
      fill_normal_of(static_cast<T*>(data), count, how);
    }
  });
}

}  // namespace ddp

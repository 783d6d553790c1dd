#include "reducer/checks/parameter_check.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "ddp/core/text.hpp"
#include "device/memory/memory_place.hpp"

namespace ddp {

std::string parameter_name(std::span<Parameter const> parameters, std::size_t index) {
  return text("parameter ", index, " \"", parameters[index].name, "\"");
}

void require_memory(std::function<std::string()> const& name, TensorView const& view) {
  if (view.count() == 0) return;
  require(view.data != nullptr, [&] { return text(name(), " is a null pointer for ", describe(view)); });
  std::string const wrong = why_memory_is_elsewhere(view);
  require(wrong.empty(), [&] { return text(name(), " is ", wrong); });
}

namespace {

// The runtime moves the values, so what shared their memory would share nothing afterwards.
void require_apart(std::span<Parameter const> parameters, std::span<NamedTensor const> buffers) {
  struct Place {
    std::byte const* begin;
    std::size_t bytes;
    std::string const* name;
  };
  std::vector<Place> places;
  auto const add = [&](TensorView const& value, std::string const& name) {
    if (value.count() > 0)
      places.push_back({static_cast<std::byte const*>(value.data), value.bytes(), &name});
  };
  for (Parameter const& each : parameters) add(each.value, each.name);
  std::size_t const moved = places.size();
  for (std::size_t p = 0; p < moved; ++p) {
    for (NamedTensor const& buffer : buffers) {
      auto const* const begin = static_cast<std::byte const*>(buffer.value.data);
      bool const apart = buffer.value.count() == 0 || begin + buffer.value.bytes() <= places[p].begin ||
                         places[p].begin + places[p].bytes <= begin;
      require(apart, [&] {
        return text(
            "Options::sharding: parameter \"", *places[p].name, "\" and buffer \"", buffer.name,
            "\" overlap in memory, and the values of parameters are moved: give the buffer memory of its "
            "own");
      });
    }
  }
  std::ranges::sort(places, std::less<>{}, &Place::begin);
  for (std::size_t i = 1; i < places.size(); ++i) {
    require(places[i - 1].begin + places[i - 1].bytes <= places[i].begin, [&] {
      return text("Options::sharding: the values of parameters \"", *places[i - 1].name, "\" and \"",
                  *places[i].name,
                  "\" overlap in memory, and would be moved apart; give a tied parameter once");
    });
  }
}

}  // namespace

void check_parameters(std::span<Parameter const> parameters, GradientMemory::Options const& options,
                      Sharding sharding, std::span<NamedTensor const> buffers) {
  require(sharding == Sharding::none || options.storage == GradientStorage::arena, [&] {
    return text("Options::sharding = optimizer: expected storage = arena, found ", to_string(options.storage),
                "; ranks exchange values and gradients of a bucket in one piece, "
                "so the runtime says where both lie");
  });
  auto const name_of = [&](std::size_t index) { return parameter_name(parameters, index); };
  require(!options.reduce_dtype || is_floating(*options.reduce_dtype), [&] {
    return text("Options::reduce_dtype: expected a floating point type, found ", *options.reduce_dtype);
  });
  require(!parameters.empty(), "there is nothing to reduce: the list of parameters is empty");
  std::vector<std::pair<std::byte const*, std::size_t>> places;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    Parameter const& parameter = parameters[p];
    require(is_floating(parameter.value.dtype), [&] {
      return text(name_of(p), " is ", describe(parameter.value),
                  "; only floating point parameters have gradients: pass others as buffers");
    });
    require_memory([&] { return name_of(p); }, parameter.value);
    if (options.storage == GradientStorage::arena) {
      require(parameter.bind_gradient != nullptr, [&] {
        return text(name_of(p),
                    " has no bind_gradient; with storage = arena the runtime says where its gradient lies. "
                    "Set bind_gradient, or use in_place or copy with Parameter::gradient");
      });
      require(sharding == Sharding::none || parameter.bind_value != nullptr, [&] {
        return text(
            name_of(p),
            " has no bind_value; with Options::sharding the runtime says where its values lie, so that "
            "those of a bucket lie together");
      });
      continue;
    }
    bool const fits = parameter.gradient.dtype == parameter.value.dtype &&
                      parameter.gradient.device == parameter.value.device &&
                      parameter.gradient.count() == parameter.value.count() &&
                      (parameter.gradient.data != nullptr || parameter.gradient.count() == 0);
    require(fits, [&] {
      return text(name_of(p), " is ", describe(parameter.value), " and its gradient ",
                  describe(parameter.gradient), parameter.gradient.data == nullptr ? ", a null pointer" : "",
                  "; with storage = ", to_string(options.storage), " the gradient needs the same form");
    });
    require_memory([&] { return text("the gradient of ", name_of(p)); }, parameter.gradient);
    if (parameter.gradient.count() != 0) {
      places.emplace_back(static_cast<std::byte const*>(parameter.gradient.data), p);
    }
  }
  if (sharding != Sharding::none) require_apart(parameters, buffers);
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    TensorView const& before = parameters[places[i - 1].second].gradient;
    require(places[i - 1].first + before.bytes() <= places[i].first, [&] {
      return text("the gradients of ", name_of(places[i - 1].second), " and ", name_of(places[i].second),
                  " overlap in memory; give a tied parameter once");
    });
  }
}

}  // namespace ddp

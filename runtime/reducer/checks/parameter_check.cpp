#include "reducer/checks/parameter_check.hpp"

#include <algorithm>
#include <cstddef>
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
  require(view.data != nullptr, [&] {
    return text(name(), " is a null pointer for ", describe(view),
                "; expected allocated memory (cudaMalloc() gives none where there is no GPU)");
  });
  std::string const wrong = why_memory_is_elsewhere(view);
  require(wrong.empty(), [&] { return text(name(), " is ", wrong); });
}

namespace {

// Throws, with words(first, second), if two of these views overlap. `view_of(p)`: that of parameter `p`.
template <class ViewOf, class Words>
void require_apart(std::size_t parameters, ViewOf const& view_of, Words const& words) {
  std::vector<std::pair<std::byte const*, std::size_t>> places;
  for (std::size_t p = 0; p < parameters; ++p) {
    TensorView const& view = view_of(p);
    if (view.count() != 0) places.emplace_back(static_cast<std::byte const*>(view.data), p);
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    TensorView const& before = view_of(places[i - 1].second);
    require(places[i - 1].first + before.bytes() <= places[i].first,
            [&] { return words(places[i - 1].second, places[i].second); });
  }
}

// The runtime moves the values, so what shared their memory would share nothing afterwards.
void require_values_apart(std::span<Parameter const> parameters, std::span<NamedTensor const> buffers) {
  for (Parameter const& parameter : parameters) {
    auto const* const value = static_cast<std::byte const*>(parameter.value.data);
    for (NamedTensor const& buffer : buffers) {
      auto const* const begin = static_cast<std::byte const*>(buffer.value.data);
      bool const apart = parameter.value.count() == 0 || buffer.value.count() == 0 ||
                         begin + buffer.value.bytes() <= value || value + parameter.value.bytes() <= begin;
      require(apart, [&] {
        return text("Options::sharding: parameter \"", parameter.name, "\" and buffer \"", buffer.name,
                    "\" overlap in memory, and the values of parameters are moved: give the buffer memory of "
                    "its own");
      });
    }
  }
  require_apart(
      parameters.size(), [&](std::size_t p) -> TensorView const& { return parameters[p].value; },
      [&](std::size_t first, std::size_t second) {
        return text("Options::sharding: the values of parameters \"", parameters[first].name, "\" and \"",
                    parameters[second].name,
                    "\" overlap in memory, and would be moved apart; give a tied parameter once");
      });
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
  }
  if (sharding != Sharding::none) require_values_apart(parameters, buffers);
  if (options.storage == GradientStorage::arena) return;
  require_apart(
      parameters.size(), [&](std::size_t p) -> TensorView const& { return parameters[p].gradient; },
      [&](std::size_t first, std::size_t second) {
        return text("the gradients of ", name_of(first), " and ", name_of(second),
                    " overlap in memory; give a tied parameter once");
      });
}

}  // namespace ddp

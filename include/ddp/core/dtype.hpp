// Element types, as values. Types are erased at the backends' boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "ddp/core/export.hpp"
#include "ddp/core/half.hpp"

namespace DDP_EXPORT ddp {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i32, i64, u8, i8, i16, boolean };

inline constexpr std::size_t kDTypeCount = 10;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    case DType::u8:
    case DType::i8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

/// f64, f32, f16 and bf16.
[[nodiscard]] constexpr bool is_floating(DType dtype) noexcept {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// Whether communicators reduce it: all but i8, i16 and boolean, which are only carried.
[[nodiscard]] constexpr bool is_reducible(DType dtype) noexcept {
  return dtype != DType::i8 && dtype != DType::i16 && dtype != DType::boolean;
}

/// "f32"; of DType::boolean "bool".
[[nodiscard]] std::string_view to_string(DType dtype) noexcept;
inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << to_string(dtype); }

/// The DType of a C++ type: dtype_of<float> is DType::f32.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0,
                "no DType for this type: use double, float, ddp::float16, ddp::bfloat16, "
                "bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t or std::uint8_t; half and "
                "__nv_bfloat16 of CUDA after #include <ddp/device/cuda_types.hpp>");
  return DType::u8;
}();
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<float16> = DType::f16;
template <>
inline constexpr DType dtype_of<bfloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::i8;
template <>
inline constexpr DType dtype_of<std::int16_t> = DType::i16;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

/// Calls `function(T{})` with the C++ type of `dtype` and returns what it returns.
template <class Function>
decltype(auto) dispatch(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f64:
      return function(double{});
    case DType::f32:
      return function(float{});
    case DType::f16:
      return function(float16{});
    case DType::bf16:
      return function(bfloat16{});
    case DType::i32:
      return function(std::int32_t{});
    case DType::i64:
      return function(std::int64_t{});
    case DType::i8:
      return function(std::int8_t{});
    case DType::i16:
      return function(std::int16_t{});
    case DType::boolean:
      return function(bool{});
    case DType::u8:
      break;
  }
  return function(std::uint8_t{});
}

}  // namespace ddp

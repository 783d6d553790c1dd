// What ranks tell each other: one value with fields that may hold any bytes, and whether they said the same.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "core/parse_number.hpp"

namespace ddp {

template <class T>
concept RecordedNumber = std::integral<T> || std::floating_point<T>;

/// Adds a field: the length of its text, ':' and the text.
void append_field(std::string& record, std::string_view field);
template <RecordedNumber Number>
void append_field(std::string& record, Number number) {
  std::array<char, 32> digits{};
  auto const end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  append_field(record, std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
}

/// record("my host", 42) is "7:my host2:42". Records that stand behind each other are one record. Numbers are
/// the same in every locale, and are read back as they were.
template <class... Fields>
[[nodiscard]] std::string record(Fields const&... fields) {
  std::string out;
  (append_field(out, fields), ...);
  return out;
}

/// Reads fields in the order in which they were appended. If one is missing, or is no number where one is
/// asked for, the reader becomes false, and later reads change nothing.
class RecordReader {
 public:
  explicit RecordReader(std::string_view record) : rest_(record) {}

  [[nodiscard]] explicit operator bool() const noexcept { return good_; }
  RecordReader& operator>>(std::string& field);
  template <RecordedNumber Number>
  RecordReader& operator>>(Number& number) {
    auto const value = parse_number<Number>(take());
    good_ = good_ && value;
    if (good_) number = *value;
    return *this;
  }

 private:
  /// The next field. If there is none, the reader becomes false.
  [[nodiscard]] std::string_view take();

  std::string_view rest_;
  bool good_ = true;
};

/// The place of the first rank of which `of` is not what it is of rank 0; 0 if all agree.
template <class All, class Of = std::identity>
[[nodiscard]] std::size_t first_to_differ(All const& said, Of of = {}) {
  for (std::size_t r = 1; r < said.size(); ++r) {
    if (std::invoke(of, said[r]) != std::invoke(of, said[0])) return r;
  }
  return 0;
}

}  // namespace ddp

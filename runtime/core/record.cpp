#include "core/record.hpp"

#include <system_error>

namespace ddp {

void append_field(std::string& record, std::string_view field) {
  std::array<char, 24> length{};
  record.append(length.data(), std::to_chars(length.data(), length.data() + length.size(), field.size()).ptr);
  record.append(1, ':').append(field);
}

RecordReader& RecordReader::operator>>(std::string& field) {
  std::string_view const bytes = take();
  if (good_) field = bytes;
  return *this;
}

std::string_view RecordReader::take() {
  std::size_t length = 0;
  char const* const end = rest_.data() + rest_.size();
  auto const [colon, error] = std::from_chars(rest_.data(), end, length);
  bool const is_field = error == std::errc{} && colon != end && *colon == ':' &&
                        length <= static_cast<std::size_t>(end - colon) - 1;
  good_ = good_ && is_field;
  if (!good_) return {};
  std::string_view const field(colon + 1, length);
  rest_ = std::string_view(field.data() + length, static_cast<std::size_t>(end - field.data()) - length);
  return field;
}

}  // namespace ddp

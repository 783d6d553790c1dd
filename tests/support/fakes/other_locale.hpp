// A program that writes numbers as its user does: 1.821,5.
#pragma once

#include <clocale>
#include <cstdlib>
#include <fstream>
#include <locale>
#include <string>

#include "support/launcher/shell.hpp"

namespace ddp::testing {

struct GroupedNumbers final : std::numpunct<char> {
  [[nodiscard]] char do_thousands_sep() const override { return '.'; }
  [[nodiscard]] char do_decimal_point() const override { return ','; }
  [[nodiscard]] std::string do_grouping() const override { return "\3"; }
};

/// C++'s locale, and C's too where one with a decimal comma can be made here; both as before at the end.
class OtherLocale {
 public:
  OtherLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new GroupedNumbers))) {
    std::ofstream(folder_.path() / "source")
        << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\nEND LC_NUMERIC\n";
    static_cast<void>(run_shell(folder_.path(), "localedef -c -i source -f ANSI_X3.4-1968 ./comma"));
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    std::setlocale(LC_NUMERIC, "comma");
    ::unsetenv("LOCPATH");
  }
  OtherLocale(OtherLocale const&) = delete;
  OtherLocale& operator=(OtherLocale const&) = delete;
  ~OtherLocale() {
    std::setlocale(LC_NUMERIC, "C");
    std::locale::global(before_);
  }

  /// Whether C's locale is another too.
  [[nodiscard]] static bool has_comma_in_c() { return std::localeconv()->decimal_point == std::string(","); }

 private:
  TemporaryFolder folder_;
  std::locale before_;
};

}  // namespace ddp::testing

# Fails when a file uses what only one place may use: cmake -D ROOT=<repository> -P cmake/CheckCalls.cmake
#
# Looks at include/, runtime/ and launcher/, comments aside.
cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "CheckCalls: set ROOT to the repository's folder (it is \"${ROOT}\")")
endif()
file(REAL_PATH "${ROOT}" ROOT)

set(locale "depends on the program's locale")
# A pattern, one of the files that may use it nevertheless, what is wrong with it, and what to use.
set(restricted
    "std::[io]?(string|f)stream[^a-z]" "^include/ddp/core/text[.]hpp$" "${locale}" "Classic<std::…stream> of ddp/core/text.hpp"
    "std::to_string[(]" "^$" "${locale} for a double" "text() of ddp/core/text.hpp"
    "std::put_(time|money)|std::get_(time|money)|std::regex" "^$" "${locale}" "utc_text() or text()"
    "std::sto(i|l|ll|ul|ull|f|d|ld)[(]" "^$" "${locale}" "parse_number() of core/parse_number.hpp"
    # As CUDA reads CUDA_VISIBLE_DEVICES.
    "[^a-z_](strto(d|f|ld|l|ll|ul|ull|imax|umax)|ato(i|l|ll|f))[(]" "^runtime/device/registry/cuda_visible_devices[.]cpp$"
    "${locale}" "parse_number() of core/parse_number.hpp"
    "[^a-z_]v?f?sscanf[(]" "^$" "${locale}" "parse_number(), or a Classic<std::istringstream>"
    "%[-+#0-9.*]*l?[aefgAEFG][^a-zA-Z_]" "^$" "${locale}" "text() with std::setprecision"
    "strftime[(][^\n]*%[^YmdHMS]" "^$" "${locale}" "utc_text() of core/utc_time.hpp"
    "std::(isal(num|pha)|is(digit|xdigit|space|blank|upper|lower|punct|print|graph|cntrl)|to(upper|lower))([^a-z_]|$)" "^$"
    "${locale}" "core/ascii.hpp"
    "setlocale|locale::global" "^$" "changes the program's locale" "Classic<std::…stream> of ddp/core/text.hpp")

# Where a thread may begin.
set(threads "^runtime/core/(system/thread_without_signals|thread_team)[.]hpp$")
list(APPEND restricted
    "std::thread( [a-z_]+)?[({]|<std::thread>|std::jthread|std::async|pthread_create" "${threads}"
    "takes the program's signals" "start_thread_without_signals() or call_without_signals()")

set(violations "")
file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/include/*" "${ROOT}/runtime/*" "${ROOT}/launcher/*")
list(FILTER files INCLUDE REGEX "[.](hpp|cpp|cu)$")
list(LENGTH restricted count)
math(EXPR last "${count} - 1")
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" content)
  string(REGEX REPLACE "//[^\n]*" "" content "\n${content}")
  string(REGEX REPLACE "Classic<std::[a-z]+>" "" content "${content}")
  foreach(i RANGE 0 ${last} 4)
    list(SUBLIST restricted ${i} 4 rule)
    list(GET rule 0 pattern)
    list(GET rule 1 where)
    if(NOT file MATCHES "${where}" AND content MATCHES "${pattern}")
      string(STRIP "${CMAKE_MATCH_0}" found)
      list(GET rule 2 reason)
      list(GET rule 3 instead)
      string(APPEND violations "\n  ${file}: ${found}\n      ${reason}; use ${instead}")
    endif()
  endforeach()
endforeach()

list(LENGTH files checked)
if(checked EQUAL 0)
  message(FATAL_ERROR "CheckCalls: no source file found under ${ROOT}")
endif()
if(violations)
  message(FATAL_ERROR "CheckCalls: ${checked} files checked; forbidden:${violations}")
endif()
message(STATUS "CheckCalls: ${checked} files checked, each uses only what it may use")

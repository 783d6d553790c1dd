# For the tests of checks: WORK is a folder for planted trees, CHECK the script.

# expect(name file content [message]): a tree with a clean file and `file` passes, or fails with `message`.
function(expect name file content)
  file(REMOVE_RECURSE "${WORK}")
  file(WRITE "${WORK}/include/ddp/core/clean.hpp" "#pragma once\n#include <vector>\n")
  file(WRITE "${WORK}/${file}" "${content}")
  execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${WORK} -P ${CHECK} RESULT_VARIABLE result
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(ARGC EQUAL 3)
    if(NOT result EQUAL 0)
      message(SEND_ERROR "${name}: expected to pass, but: ${output}")
    endif()
  elseif(result EQUAL 0)
    message(SEND_ERROR "${name}: expected to be refused, but it passed")
  else()
    string(FIND "${output}" "${ARGV3}" found)
    if(found EQUAL -1)
      message(SEND_ERROR "${name}: expected a message with \"${ARGV3}\", found: ${output}")
    endif()
  endif()
  file(REMOVE_RECURSE "${WORK}")
endfunction()

# A check that looked at nothing must fail.
function(expect_nothing_to_be_refused)
  file(REMOVE_RECURSE "${WORK}")
  file(MAKE_DIRECTORY "${WORK}")
  execute_process(COMMAND ${CMAKE_COMMAND} -D ROOT=${WORK} -P ${CHECK} RESULT_VARIABLE result ERROR_QUIET)
  if(result EQUAL 0)
    message(SEND_ERROR "an empty tree passed: a check that looked at nothing must fail")
  endif()
endfunction()

# What DDP_BUILD_FUZZERS needs of the whole build: clang, whose libFuzzer drives the targets of tests/fuzz, and its
# instrumentation in everything that they link.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "DDP_BUILD_FUZZERS: expected clang, found ${CMAKE_CXX_COMPILER_ID}. Use cmake --preset fuzz in a "
                      "build folder of its own (packages clang and libclang-rt-dev).")
endif()
if(NOT DDP_SANITIZE MATCHES "fuzzer-no-link")
  message(FATAL_ERROR "DDP_BUILD_FUZZERS: DDP_SANITIZE is \"${DDP_SANITIZE}\"; expected address,undefined,fuzzer-no-link, "
                      "as cmake --preset fuzz sets it.")
endif()
if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  include_directories(SYSTEM BEFORE "${PROJECT_SOURCE_DIR}/.ci/clang")  # std::source_location
endif()

# What every target of this project shares: the language level, warnings, sanitizers.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# What is found here is needed by whoever links ddp::ddp, from any folder of an enclosing project too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)

find_package(Threads REQUIRED)

# CMake from 3.31 on would also group CUDA sources: those of a target use the same names in anonymous namespaces.
function(ddp_compile_cuda_alone name)
  get_target_property(sources ${name} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  if(sources)
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# ddp_target(name): our settings for one of our own targets.
function(ddp_target name)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL ddp_compile_cuda_alone [[${name}]])")  # it may get more sources
  target_compile_features(${name} PUBLIC cxx_std_20)
  # By its option where CMake gives nvcc a lower level: 3.25 has no cuda_std_20. Elsewhere the level may be higher.
  target_compile_options(${name} PUBLIC
                         $<$<COMPILE_LANGUAGE:CUDA>:$<$<NOT:$<COMPILE_FEATURES:cuda_std_20>>:-std=c++20>>)
  set(warnings -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual)
  set(errors "")
  if(DDP_WARNINGS_AS_ERRORS)
    set(errors -Werror)
  endif()
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wpedantic;${warnings};${errors}>)
  # No -Wpedantic or -Wconversion: nvcc's own code between ours and the host compiler would not pass.
  list(REMOVE_ITEM warnings -Wconversion -Wno-sign-conversion)
  list(JOIN warnings "," host_warnings)
  target_compile_options(${name} PRIVATE
                         $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_warnings};--expt-relaxed-constexpr>)
  if(errors)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # There g++ takes every source for a header, whose anonymous types others could not name.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
  if(DDP_SANITIZE)
    # With what sanitizers insert, g++ 12 no longer sees that a std::variant holds what it asks for.
    set(compiled_with ${DDP_SANITIZE})
    # UndefinedBehaviorSanitizer looks at the library: in tests it would take a third of the time to compile them.
    if(DDP_ONLY_TESTS)
      string(REPLACE ",undefined" "" compiled_with ${DDP_SANITIZE})
    endif()
    target_compile_options(${name} PRIVATE -fsanitize=${compiled_with} -fno-sanitize-recover=all
                                           -fno-omit-frame-pointer $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
    target_link_options(${name} PRIVATE -fsanitize=${DDP_SANITIZE})
  endif()
endfunction()

# Fails when a file includes what its layer must not know: cmake -D ROOT=<repository> -P cmake/CheckLayers.cmake
#
# Looks at include/ddp/<layer>/, runtime/<layer>/ and launcher/. The rules are docs/architecture.md's table of
# layers: include only downward. Beside them: headers of other libraries only where `restricted` below allows them, and no
# conditional on DDP_WITH_*, since CMake chooses between a file and its not_built.cpp.
cmake_minimum_required(VERSION 3.25)
if(NOT IS_DIRECTORY "${ROOT}")
  message(FATAL_ERROR "CheckLayers: set ROOT to the repository's folder (it is \"${ROOT}\")")
endif()
file(REAL_PATH "${ROOT}" ROOT)

# Which layers each layer may include, itself aside.
set(may_use_core "")
set(may_use_observe core)
set(may_use_device core observe)
set(may_use_bootstrap core observe)
set(may_use_comm core observe device bootstrap)
set(may_use_reducer ${may_use_comm} comm)
set(may_use_parallel ${may_use_reducer} reducer)
set(may_use_checkpoint ${may_use_parallel} parallel)
set(may_use_data_parallel ${may_use_parallel})
set(may_use_libtorch ${may_use_checkpoint} checkpoint data_parallel)
set(may_use_launcher core observe device bootstrap)
set(layers core observe device bootstrap comm reducer parallel checkpoint data_parallel libtorch launcher)
list(JOIN layers ", " layer_names)

# ddp::libtorch is a library of its own, and the shared libddp hides the symbols of private headers: of these it may
# include those that need no .cpp.
set(private_for_libtorch core/hash.hpp core/thread_team.hpp data_parallel/replicas/device_choice.hpp
                         data_parallel/replicas/refuse_capture.hpp data_parallel/replicas/replica_threads.hpp
                         parallel/world/lost_rank.hpp)

# Each of these folders is one way to reach other ranks, and never includes another; comm/factory.cpp and
# bootstrap/connect.cpp, which choose, include them all. ("solo" is none of them: a group of one is what each of them
# splits off.)
set(backends in_process launcher mpi nccl shm staged)

# Headers of other libraries: a pattern of the header, and one of the files that may include it.
set(restricted
    "^nccl[.]h$|^nccl_"                                     "^runtime/comm/nccl/"
    "^mpi[.]h$"                                             "^runtime/(comm|bootstrap)/mpi/|^include/ddp/bootstrap/mpi[.]hpp$"
    "^(cuda|cublas|curand|nvml|nvrtc|nvtx3)|^(cub|thrust)/" "^include/ddp/device/cuda_types[.]hpp$|^runtime/(device/cuda/|comm/nccl/|comm/kernels/cuda_|reducer/cuda/)"
    "^boost/"                                               "^launcher/"
    "^dlpack/"                                              "^include/ddp/device/detail/dlpack_parts[.]hpp$"
    "^nlohmann/"                                            "^(runtime|launcher)/.*[.]cpp$"
    "^openssl/"                                             "^runtime/checkpoint/sha256[.]cpp$"
    "^(torch|ATen|c10)/"                                    "^(include/ddp|runtime)/libtorch/"
    "^zlib[.]h$|^(gtest|gmock)/"                            "^$")

set(violations "")
function(violation file line text)
  set(violations "${violations}\n  ${file}: ${line}\n      ${text}" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/include/ddp/*" "${ROOT}/runtime/*" "${ROOT}/launcher/*")
set(checked 0)
foreach(file IN LISTS files)
  if(NOT file MATCHES "[.](hpp|cpp|h|cc|cu|cuh|inl)$" OR file MATCHES "^include/ddp/(ddp|libtorch|mpi)[.]hpp$")
    continue()
  endif()
  math(EXPR checked "${checked} + 1")
  if(file MATCHES "^(include/ddp|runtime)/([^/]+)/")
    set(layer "${CMAKE_MATCH_2}")
    if(layer STREQUAL "launcher")
      set(layer "")  # it has a folder of its own
    endif()
  elseif(file MATCHES "^launcher/")
    set(layer launcher)
  else()
    set(layer "")
  endif()
  if(NOT layer IN_LIST layers)
    violation("${file}" "the file itself" "lies in no layer; the layers are: ${layer_names}")
    continue()
  endif()

  # Brackets and semicolons would confuse CMake's lists; directives that matter have none.
  file(STRINGS "${ROOT}/${file}" lines REGEX "^[ \t]*#[ \t]*(include|import|if|elif|ifdef|ifndef)")
  foreach(line IN LISTS lines)
    if(line MATCHES "^[ \t]*#[ \t]*(if|elif|ifdef|ifndef)")
      if(line MATCHES "DDP_WITH_|__has_include")
        violation("${file}" "${line}" "what a build lacks is replaced by a file not_built.cpp, not by a conditional")
      endif()
      continue()
    endif()
    if(NOT line MATCHES "#[ \t]*include(_next)?[ \t]*[<\"]([^>\"]+)[>\"]")
      violation("${file}" "${line}" "expected a plain #include <…> or #include \"…\"")
      continue()
    endif()
    set(header "${CMAKE_MATCH_2}")
    string(REGEX MATCH "include(_next)?[ \t]*\"" quoted "${line}")

    if(header MATCHES "(^|/)[.][.]?/|^/")
      violation("${file}" "${line}" "include by the path from include/ or runtime/, not by a relative one")
      continue()
    endif()
    # The layer that it names: <ddp/comm/a.hpp>, "ddp/comm/a.hpp", "comm/a.hpp".
    set(used "")
    if(quoted OR header MATCHES "^ddp/")
      string(REGEX REPLACE "^ddp/" "" rest "${header}")
      string(FIND "${rest}" "/" slash)
      if(slash GREATER 0)
        string(SUBSTRING "${rest}" 0 ${slash} used)
      endif()
    endif()
    if(used)
      if(NOT used IN_LIST layers)
        violation("${file}" "${line}" "there is no layer ${used}; the layers are: ${layer_names}")
      elseif(NOT used STREQUAL layer AND NOT used IN_LIST may_use_${layer})
        string(REPLACE ";" ", " allowed "${may_use_${layer}}")
        if(NOT allowed)
          set(allowed "nothing but itself")
        endif()
        violation("${file}" "${line}" "layer ${layer} may include ${allowed}, not ${used}")
      elseif(layer STREQUAL "libtorch" AND NOT header MATCHES "^(ddp|libtorch)/" AND NOT header IN_LIST private_for_libtorch)
        list(JOIN private_for_libtorch ", " allowed)
        violation("${file}" "${line}" "${header} is private; of such headers libtorch may include ${allowed}")
      endif()
    elseif(header MATCHES "^ddp/")
      violation("${file}" "${line}" "a layer must not include ${header}, which includes every layer")
    endif()

    if("${file} ${header}" MATCHES "^runtime/(comm|bootstrap)/([a-z_]+)/[^ ]* (comm|bootstrap)/([a-z_]+)/")
      if(CMAKE_MATCH_2 IN_LIST backends AND CMAKE_MATCH_4 IN_LIST backends AND NOT CMAKE_MATCH_2 STREQUAL CMAKE_MATCH_4)
        violation("${file}" "${line}" "backend ${CMAKE_MATCH_2} must not include backend ${CMAKE_MATCH_4}")
      endif()
    endif()

    list(LENGTH restricted count)
    math(EXPR last "${count} - 1")
    foreach(i RANGE 0 ${last} 2)
      math(EXPR j "${i} + 1")
      list(GET restricted ${i} pattern)
      list(GET restricted ${j} where)
      if(header MATCHES "${pattern}" AND NOT file MATCHES "${where}")
        violation("${file}" "${line}" "${header} may be included in ${where} only")
      endif()
    endforeach()
    if(header STREQUAL "mpi.h" AND file MATCHES "^runtime/bootstrap/")
      list(APPEND bootstrap_mpi "${file}")
    endif()
  endforeach()
endforeach()

list(REMOVE_DUPLICATES bootstrap_mpi)
list(LENGTH bootstrap_mpi count)
if(count GREATER 1)
  violation("runtime/bootstrap" "#include <mpi.h>" "one private file may include it, these do: ${bootstrap_mpi}")
endif()
if(checked EQUAL 0)
  message(FATAL_ERROR "CheckLayers: no source file found under ${ROOT}")
endif()
if(violations)
  message(FATAL_ERROR "CheckLayers: ${checked} files checked; forbidden:${violations}")
endif()
message(STATUS "CheckLayers: ${checked} files checked, each includes only what its layer may know")

# ddp_test_entry(name label timeout command…). Entries that are not of GPUs see none: they test the same on any machine.
function(ddp_test_entry name label timeout)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout})
  if(NOT label MATCHES "gpu$")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "CUDA_VISIBLE_DEVICES=")
  endif()
endfunction()

# ddp_gpus_test_entry(name n timeout command…): gpu.name.gpus1 or multi_gpu.name.gpus<n>, the command as n ranks under
# ddp-launch, each with a GPU of its own. Where fewer GPUs are, ddp-launch says so and ends with 69: skipped.
function(ddp_gpus_test_entry name n timeout)
  if(n EQUAL 1)
    set(label gpu)
  else()
    set(label multi_gpu)
  endif()
  math(EXPR last "${n} - 1")
  set(gpus "")
  foreach(i RANGE ${last})
    list(APPEND gpus ${i})
  endforeach()
  list(JOIN gpus "," gpus)
  set(entry ${label}.${name}.gpus${n})
  ddp_test_entry(${entry} ${label} ${timeout}
                 ddp-launch --gpus ${gpus} --log-dir ${CMAKE_BINARY_DIR}/logs/${entry} -- ${ARGN})
  set_tests_properties(${entry} PROPERTIES SKIP_RETURN_CODE 69)
  # Many cases connect ranks anew, which takes NCCL longer the more channels it uses. What is about NCCL itself, and what
  # measures, has as many as NCCL wants.
  if(n GREATER 1 AND NOT name MATCHES "nccl|comm_sms|bench")
    set_property(TEST ${entry} APPEND PROPERTY ENVIRONMENT "NCCL_MAX_NCHANNELS=2")
  endif()
endfunction()

# ddp_alone(entries…): they measure a GPU or how soon something happens on it, fill it, or look at who uses it, so nothing else runs
# beside them.
function(ddp_alone)
  set_tests_properties(${ARGN} PROPERTIES RUN_SERIAL TRUE)
endfunction()

# ddp_mpi_test_entry(entry label n timeout command…): the command as n ranks under mpirun, on a machine with any number
# of cores, also as root in a container.
function(ddp_mpi_test_entry entry label n timeout)
  ddp_test_entry(${entry} ${label} ${timeout} ${DDP_MPIRUN} --oversubscribe --bind-to none -np ${n} ${ARGN})
  set_property(TEST ${entry} APPEND PROPERTY
               ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
endfunction()

# ddp_compares_much(target): optimised, since it computes and compares every element. Precompiled headers would have to be
# compiled the same way.
function(ddp_compares_much target)
  target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:-O1>")
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()

# ddp_add_test(name LABEL unit|multi_process|faults|package|gpu|multi_gpu SOURCES files…
#              [RANKS n…] [MPIRANKS n…] [GPUS n…] [VIRTUAL n…] [GPU] [LIBRARIES …] [HEADERS target] [TIMEOUT s] [ONE_THREAD])
#
# One GoogleTest program; a hang is a failure, so every entry has a TIMEOUT. Its ctest entries:
#   plain     LABEL.name
#   RANKS     LABEL.name.np<n>: n processes under ddp-launch --cpus
#   MPIRANKS  LABEL.name.mpi<n>: n processes under mpirun
#   GPUS      gpu.name.gpus1, multi_gpu.name.gpus<n>: n processes under ddp-launch, each with a GPU of its own
#   VIRTUAL   gpu.name.virtual<n>: n processes under ddp-launch that share the first GPU
#   GPU       gpu.name, in one process with whatever GPUs there are; its main function ends with 69 without any
# HEADERS: the target whose precompiled headers it uses, in place of those of all tests.
# ONE_THREAD: what it tests has no threads, so ThreadSanitizer, which would find nothing, does not build it.
# A program may have entries of several kinds. GPUS, VIRTUAL and GPU have none where CUDA is not built, MPIRANKS where
# MPI is not, or has another mpirun than Open MPI's.
function(ddp_add_test name)
  cmake_parse_arguments(arg "GPU;ONE_THREAD" "LABEL;TIMEOUT;HEADERS" "SOURCES;RANKS;MPIRANKS;GPUS;VIRTUAL;LIBRARIES" ${ARGN})
  if(arg_ONE_THREAD AND DDP_SANITIZE STREQUAL "thread")
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(DDP_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  if(NOT arg_HEADERS)
    set(arg_HEADERS ddp_test_headers)
  endif()
  set(target ${arg_LABEL}_${name})
  add_executable(${target} ${arg_SOURCES})
  ddp_target(${target})
  target_link_libraries(${target} PRIVATE ddp::ddp ddp_test_support GTest::gmock GTest::gtest ${arg_LIBRARIES})
  target_precompile_headers(${target} REUSE_FROM ${arg_HEADERS})

  foreach(n ${arg_RANKS})
    set(entry ${arg_LABEL}.${name}.np${n})
    ddp_test_entry(${entry} ${arg_LABEL} ${arg_TIMEOUT}
                   ddp-launch --cpus ${n} --log-dir ${CMAKE_BINARY_DIR}/logs/${entry} -- $<TARGET_FILE:${target}>)
  endforeach()
  if(DDP_MPIRUN)
    foreach(n ${arg_MPIRANKS})
      ddp_mpi_test_entry(${arg_LABEL}.${name}.mpi${n} ${arg_LABEL} ${n} ${arg_TIMEOUT} $<TARGET_FILE:${target}>)
    endforeach()
  endif()
  if(DDP_HAS_CUDA)
    foreach(n ${arg_GPUS})
      ddp_gpus_test_entry(${name} ${n} ${arg_TIMEOUT} $<TARGET_FILE:${target}>)
    endforeach()
    foreach(n ${arg_VIRTUAL})
      set(entry gpu.${name}.virtual${n})
      ddp_test_entry(${entry} gpu ${arg_TIMEOUT} ddp-launch --gpus 0 --virtual ${n}
                     --log-dir ${CMAKE_BINARY_DIR}/logs/${entry} -- $<TARGET_FILE:${target}>)
      set_tests_properties(${entry} PROPERTIES SKIP_RETURN_CODE 69)
    endforeach()
    if(arg_GPU)
      ddp_test_entry(gpu.${name} gpu ${arg_TIMEOUT} ${target})
      set_tests_properties(gpu.${name} PROPERTIES SKIP_RETURN_CODE 69)
    endif()
  endif()
  if(NOT arg_RANKS AND NOT arg_MPIRANKS AND NOT arg_GPUS AND NOT arg_VIRTUAL AND NOT arg_GPU)
    target_link_libraries(${target} PRIVATE GTest::gtest_main)
    ddp_test_entry(${arg_LABEL}.${name} ${arg_LABEL} ${arg_TIMEOUT} ${target})
  endif()
endfunction()

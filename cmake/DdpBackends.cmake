# Which backends this machine could carry and which are built, with the reason: printed at the end of configure.
#
# DDP_WITH_CUDA, DDP_WITH_MPI: AUTO looks and goes on without what is missing, ON makes its absence an error, OFF
# does not look. This version has CPU ranks of one host only, so nothing that is found here is linked yet.
set(ddp_backend_choices AUTO ON OFF)
set(DDP_WITH_CUDA AUTO CACHE STRING "GPU ranks: AUTO (if a CUDA toolkit is found), ON (or fail), OFF")
set(DDP_WITH_MPI AUTO CACHE STRING "Ranks on several hosts: AUTO (if Open MPI is found), ON (or fail), OFF")
foreach(option DDP_WITH_CUDA DDP_WITH_MPI)
  set_property(CACHE ${option} PROPERTY STRINGS ${ddp_backend_choices})
  string(TOUPPER "${${option}}" ${option})
  if(NOT ${option} IN_LIST ddp_backend_choices)
    message(FATAL_ERROR "${option} is ${${option}}; expected AUTO, ON or OFF.")
  endif()
endforeach()

# ddp_require_backend(option library found advice): with ON, a library that is missing is an error, and so is, for
# now, one that is there, since this version could not use it.
function(ddp_require_backend option library found advice)
  if(NOT ${option} STREQUAL "ON")
    return()
  endif()
  if(NOT found)
    message(FATAL_ERROR "${option}=ON, but no ${library} was found. ${advice} or use ${option}=AUTO.")
  endif()
  message(FATAL_ERROR "${option}=ON: ${library} was found, but this version of ddp has no backend for it: it has "
                      "CPU ranks of one host only. Use ${option}=AUTO or OFF.")
endfunction()

if(DDP_WITH_CUDA STREQUAL "OFF")
  set(ddp_cuda_status "not looked for (DDP_WITH_CUDA=OFF)")
  set(ddp_nccl_status "${ddp_cuda_status}")
else()
  find_package(CUDAToolkit QUIET)
  find_package(NCCL QUIET)
  ddp_require_backend(DDP_WITH_CUDA "CUDA toolkit" "${CUDAToolkit_FOUND}"
                      "Install one, put its bin/ into PATH or set CUDAToolkit_ROOT,")
  if(CUDAToolkit_FOUND)
    set(ddp_cuda_status "found ${CUDAToolkit_VERSION} (${CUDAToolkit_BIN_DIR}); GPU ranks are not built yet")
  else()
    set(ddp_cuda_status "not found (no nvcc in PATH, CUDAToolkit_ROOT or /usr/local/cuda)")
  endif()
  if(NCCL_FOUND)
    set(ddp_nccl_status "found ${NCCL_VERSION} (${NCCL_LIBRARY}); not used yet")
  else()
    set(ddp_nccl_status "not found (no nccl.h with libnccl in NCCL_ROOT or the system's folders)")
  endif()
endif()

if(DDP_WITH_MPI STREQUAL "OFF")
  set(ddp_mpi_status "not looked for (DDP_WITH_MPI=OFF)")
else()
  find_package(MPI QUIET COMPONENTS CXX)
  ddp_require_backend(DDP_WITH_MPI "MPI" "${MPI_CXX_FOUND}" "Install libopenmpi-dev and openmpi-bin")
  if(MPI_CXX_FOUND)
    set(ddp_mpi_status "found, standard ${MPI_CXX_VERSION} (${MPI_CXX_COMPILER}); ranks on several hosts are not built yet")
  else()
    set(ddp_mpi_status "not found (no mpicxx: packages libopenmpi-dev and openmpi-bin)")
  endif()
endif()

# ddp_print_backends(): the summary, last in configure's output.
function(ddp_print_backends)
  message(STATUS "ddp ${PROJECT_VERSION} backends:")
  message(STATUS "  solo, shm, in-process: built (CPU ranks of one host)")
  message(STATUS "  CUDA: ${ddp_cuda_status}")
  message(STATUS "  NCCL: ${ddp_nccl_status}")
  message(STATUS "  MPI:  ${ddp_mpi_status}")
endfunction()

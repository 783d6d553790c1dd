# ddp_add_layer(name SOURCES files… [CUDA files… NO_CUDA files…] [MPI files… NO_MPI files…] [LINK libraries…]): the current
# folder's part of the library, as a target ddp_<name> of its own. Files of CUDA and MPI are compiled where that is built, the
# NO_ ones where it is not; LINK names what this layer calls.
function(ddp_add_layer name)
  cmake_parse_arguments(arg "" "" "SOURCES;CUDA;NO_CUDA;MPI;NO_MPI;LINK" ${ARGN})
  foreach(backend CUDA MPI)
    if(DDP_HAS_${backend})
      list(APPEND arg_SOURCES ${arg_${backend}})
    else()
      list(APPEND arg_SOURCES ${arg_NO_${backend}})
    endif()
  endforeach()
  set(layer ddp_${name})
  add_library(${layer} OBJECT ${arg_SOURCES})
  ddp_target(${layer})
  set_target_properties(${layer} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                            CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${layer} PRIVATE ddp_private ${arg_LINK})
  # Half of what a source takes to compile are these.
  if(name STREQUAL "core")
    target_precompile_headers(ddp_core PRIVATE
                              "$<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp>")
  else()
    target_precompile_headers(${layer} REUSE_FROM ddp_core)
  endif()
  target_sources(ddp PRIVATE $<TARGET_OBJECTS:${layer}>)
  target_link_libraries(ddp PRIVATE ${arg_LINK})
endfunction()

# ddp_calls_mpi(source…): these include mpi.h. Only they get MPI's options: the others are not compiled again when MPI is
# installed later.
function(ddp_calls_mpi)
  set(options "")
  foreach(folder IN LISTS MPI_CXX_INCLUDE_DIRS)
    list(APPEND options -isystem${folder})
  endforeach()
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "${options}"
    COMPILE_DEFINITIONS "$<TARGET_PROPERTY:ddp_mpi_headers,INTERFACE_COMPILE_DEFINITIONS>")
endfunction()

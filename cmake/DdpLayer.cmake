# ddp_add_layer(SOURCES files… [CUDA files… NO_CUDA files…] [MPI files… NO_MPI files…]): the current folder's part of the
# library. Files of CUDA and MPI are compiled where that is built, the NO_ ones where it is not.
function(ddp_add_layer)
  cmake_parse_arguments(arg "" "" "SOURCES;CUDA;NO_CUDA;MPI;NO_MPI" ${ARGN})
  target_sources(ddp PRIVATE ${arg_SOURCES})
  foreach(backend CUDA MPI)
    if(DDP_HAS_${backend})
      target_sources(ddp PRIVATE ${arg_${backend}})
    else()
      target_sources(ddp PRIVATE ${arg_NO_${backend}})
    endif()
  endforeach()
endfunction()

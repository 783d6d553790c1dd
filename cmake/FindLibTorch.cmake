# Finds PyTorch's C++ library: a wheel's torch/ folder, or an unpacked libtorch.
#
# Looks in Torch_DIR (as its own TorchConfig.cmake would be found), in ddp_beside, and in CMAKE_PREFIX_PATH, which may hold the folder
# that contains torch/, torch/ itself, or what Python's torch.utils.cmake_prefix_path says. Defines LibTorch_FOUND,
# LibTorch_VERSION, LibTorch_PREFIX, LibTorch_CUDA (whether it can use GPUs) and the target ddp_torch, which has the headers of the
# CUDA toolkit too where there is one: ATen/cuda/ and c10/cuda/ include them.
#
# TorchConfig.cmake is only where it finds the version. Including it would enable the language CUDA, with standard 20 an
# error on CMake 3.25, and fail on a machine that has a wheel for CUDA and no toolkit. A program may still call
# find_package(Torch): these are the same files.
find_path(LibTorch_INCLUDE_DIR torch/csrc/autograd/engine.h HINTS ${Torch_DIR}/../../../include ${ddp_beside} ENV TORCH_INSTALL_PREFIX
          PATH_SUFFIXES include torch/include ../../include)
set(LibTorch_VERSION "")
if(LibTorch_INCLUDE_DIR)
  cmake_path(NORMAL_PATH LibTorch_INCLUDE_DIR)
  cmake_path(GET LibTorch_INCLUDE_DIR PARENT_PATH LibTorch_PREFIX)
  # Not every version has it: distributions' packages do not.
  if(EXISTS "${LibTorch_PREFIX}/share/cmake/Torch/TorchConfigVersion.cmake")
    file(STRINGS "${LibTorch_PREFIX}/share/cmake/Torch/TorchConfigVersion.cmake" line REGEX "^set.PACKAGE_VERSION " LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" LibTorch_VERSION "${line}")
  endif()
endif()
foreach(name torch torch_cpu c10 torch_cuda c10_cuda)
  find_library(LibTorch_${name}_LIBRARY ${name} HINTS ${LibTorch_PREFIX}/lib NO_DEFAULT_PATH)
  mark_as_advanced(LibTorch_${name}_LIBRARY)
endforeach()
mark_as_advanced(LibTorch_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch VERSION_VAR LibTorch_VERSION REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_VERSION
                                  LibTorch_torch_LIBRARY LibTorch_torch_cpu_LIBRARY LibTorch_c10_LIBRARY)
set(LibTorch_CUDA FALSE)
if(LibTorch_torch_cuda_LIBRARY AND LibTorch_c10_cuda_LIBRARY)
  set(LibTorch_CUDA TRUE)
endif()

if(LibTorch_FOUND AND NOT TARGET ddp_torch)
  add_library(ddp_torch INTERFACE IMPORTED GLOBAL)
  # libtorch.so loads what registers the operations of CPUs and GPUs, which no symbol asks for. It also shows functions of
  # std::filesystem from an old libstdc++, some of which call null pointers: the real one goes first.
  set(LibTorch_INCLUDE_DIRS "${LibTorch_INCLUDE_DIR}" "${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  set(LibTorch_LIBRARIES "-Wl,--push-state,--no-as-needed,-lstdc++" ${LibTorch_torch_LIBRARY} "-Wl,--pop-state"
                         ${LibTorch_torch_cpu_LIBRARY} ${LibTorch_c10_LIBRARY})
  if(LibTorch_CUDA)
    list(APPEND LibTorch_LIBRARIES ${LibTorch_torch_cuda_LIBRARY} ${LibTorch_c10_cuda_LIBRARY})
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND)
      list(APPEND LibTorch_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS})
    endif()
  endif()
  set_target_properties(ddp_torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIRS}" INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIRS}"
    INTERFACE_LINK_LIBRARIES "${LibTorch_LIBRARIES}")
  # Of builds before the C++11 ABI of strings there is a flag; a program without it would not link.
  file(STRINGS "${LibTorch_PREFIX}/share/cmake/Torch/TorchConfig.cmake" line REGEX "D_GLIBCXX_USE_CXX11_ABI=[01]" LIMIT_COUNT 1)
  if(line MATCHES "D_GLIBCXX_USE_CXX11_ABI=0")
    message(FATAL_ERROR "${LibTorch_PREFIX} was built with _GLIBCXX_USE_CXX11_ABI=0, ddp with 1: take a PyTorch of the "
                        "C++11 ABI (every wheel since 2.7; of 2.6 not PyPI's), or configure with DDP_WITH_LIBTORCH=OFF")
  endif()
endif()

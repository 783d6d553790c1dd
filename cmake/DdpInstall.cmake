# cmake --install: the library, its headers, ddp-launch, ddp-bench, the documents, and what other builds find it with.
# Everything is found relative to where it lies: an installed tree may be moved. The components are those of packages: dev unless
# said, runtime and tools; libtorch is in none, since a package could not say which PyTorch it needs.
include(CMakePackageConfigHelpers)
set(ddp_config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)

# First of all: config.hpp of one build, among the sources, would be found by all later ones in place of their own.
install(CODE "set(ddp_sources [==[${PROJECT_SOURCE_DIR}]==])
set(ddp_headers [==[${CMAKE_INSTALL_INCLUDEDIR}]==])" ALL_COMPONENTS)
install(CODE [[
cmake_path(ABSOLUTE_PATH ddp_headers BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
file(REAL_PATH "$ENV{DESTDIR}${ddp_headers}" ddp_headers)
file(REAL_PATH "${ddp_sources}/include" ddp_own_headers)
if(ddp_headers STREQUAL ddp_own_headers)
  message(FATAL_ERROR "expected a folder for what is installed, found that of ddp's sources: ${ddp_sources}. Its headers would hide "
                      "those of later builds: choose another one with --prefix")
endif()]] ALL_COMPONENTS)

install(TARGETS ddp EXPORT ddp-targets)
if(BUILD_SHARED_LIBS)
  install(TARGETS ddp_shared EXPORT ddp-targets LIBRARY COMPONENT runtime NAMELINK_COMPONENT dev)
endif()
# With an export of its own: who asks for it needs PyTorch.
if(DDP_HAS_LIBTORCH)
  set(libtorch_targets ddp_libtorch)
  if(BUILD_SHARED_LIBS)
    list(APPEND libtorch_targets ddp_libtorch_shared)
  endif()
  install(TARGETS ${libtorch_targets} EXPORT ddp-libtorch-targets ARCHIVE COMPONENT libtorch LIBRARY COMPONENT libtorch)
  install(EXPORT ddp-libtorch-targets NAMESPACE ddp:: DESTINATION ${ddp_config_folder} COMPONENT libtorch)
  # PyTorch's C++ interface changes with each minor version.
  string(REGEX MATCH "^[0-9]+[.][0-9]+" version "${LibTorch_VERSION}")
  file(WRITE ${PROJECT_BINARY_DIR}/ddp-libtorch-version.cmake "set(ddp_libtorch_version ${version})\n")
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake ${PROJECT_BINARY_DIR}/ddp-libtorch-version.cmake ${PROJECT_SOURCE_DIR}/LICENSE
          DESTINATION ${ddp_config_folder} COMPONENT libtorch)
endif()
install(TARGETS ddp-launch COMPONENT tools)
if(TARGET ddp_loopback)
  install(TARGETS ddp_loopback LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ddp COMPONENT tools)
endif()
install(TARGETS ddp_line_buffer LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ddp COMPONENT tools)  # what it has ranks preload
if(TARGET ddp_pages)
  install(FILES ${PROJECT_BINARY_DIR}/launcher/ddp-launch.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
  install(FILES ${PROJECT_BINARY_DIR}/launcher/ddp-launch.bash RENAME ddp-launch
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tools)
endif()
if(TARGET ddp-bench)
  install(TARGETS ddp-bench COMPONENT tools)
endif()
set(ddp_no_header "")
if(NOT DDP_HAS_MPI)
  set(ddp_no_header REGEX "/ddp/(bootstrap/)?mpi[.]hpp$" EXCLUDE)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ddp ${PROJECT_BINARY_DIR}/include/ddp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN *.hpp ${ddp_no_header})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN *.md PATTERN *.svg)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/LICENSE
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# find_package(ddp): ddp::static, with BUILD_SHARED_LIBS ddp::shared, and ddp::ddp, which is one of them.
install(EXPORT ddp-targets NAMESPACE ddp:: DESTINATION ${ddp_config_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ddp-config.cmake.in ${PROJECT_BINARY_DIR}/ddp-config.cmake
                              INSTALL_DESTINATION ${ddp_config_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ddp-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ddp-config.cmake ${PROJECT_BINARY_DIR}/ddp-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/DdpDependencies.cmake ${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake
        DESTINATION ${ddp_config_folder})

# pkg-config: ddp-static.pc names the static library by its file, ddp.pc is the shared one where there is one.
# From the folder of the .pc files to the prefix, so that the tree can be moved.
string(REGEX REPLACE "[^/]+" ".." ddp_pc_up "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
# What g++ and nvcc both take: nvcc knows no -pthread and no -Wl,.
set(ddp_pc_libs "-lpthread -ldl")
set(ddp_pc_requires "")
if(DDP_HAS_OPENSSL)
  list(APPEND ddp_pc_requires libcrypto)
endif()
if(DDP_HAS_MPI)
  # Without the folders that compilers search anyway.
  foreach(library IN LISTS MPI_CXX_LIBRARIES)
    cmake_path(GET library PARENT_PATH folder)
    cmake_path(GET library STEM name)
    if(library MATCHES "mpi_cxx|mpichcxx|mpicxx" OR NOT folder)
      continue()
    endif()
    string(REGEX REPLACE "^lib" "" name "${name}")
    if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
      string(APPEND ddp_pc_libs " -L${folder}")
    endif()
    string(APPEND ddp_pc_libs " -l${name}")
  endforeach()
endif()
if(DDP_HAS_CUDA)
  cmake_path(GET NCCL_LIBRARY PARENT_PATH folder)
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    string(APPEND ddp_pc_libs " -L${folder}")
  endif()
  cmake_path(GET CUDA_cudart_static_LIBRARY PARENT_PATH folder)
  string(APPEND ddp_pc_libs " -lnccl -L${folder} -lcudart_static -lrt")
endif()
list(JOIN ddp_pc_requires ", " ddp_pc_requires)
set(ddp_pc_library "\${libdir}/libddp.a")
configure_file(${PROJECT_SOURCE_DIR}/cmake/ddp.pc.in ${PROJECT_BINARY_DIR}/ddp-static.pc @ONLY)
if(BUILD_SHARED_LIBS)
  set(ddp_pc_library "-L\${libdir} -lddp")
  set(ddp_pc_libs -lpthread)
  set(ddp_pc_requires "")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/ddp.pc.in ${PROJECT_BINARY_DIR}/ddp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ddp.pc ${PROJECT_BINARY_DIR}/ddp-static.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

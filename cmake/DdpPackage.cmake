# cpack -G DEB, -G TGZ: one package with the library, the headers and the commands. Included last: it takes what the
# variables are then.
set(CPACK_PACKAGE_NAME ddp)
set(CPACK_PACKAGE_CONTACT "The authors of ddp")
set(CPACK_PACKAGE_VENDOR "The authors of ddp")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_STRIP_FILES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "C++20 library and launcher: each process trains on its share of the data, and gradients are averaged in buckets
while the backward pass is still running. Holds the shared and the static library, headers, ddp-launch and ddp-bench.")
# What the programs and the library load, as dpkg-shlibdeps finds it; then what building against it takes.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS g++)
set(suggested cmake pkg-config)
if(DDP_HAS_MPI)
  list(APPEND suggested libopenmpi-dev openmpi-bin)
endif()
if(DDP_HAS_OPENSSL)
  list(APPEND suggested libssl-dev)
endif()
list(JOIN suggested ", " CPACK_DEBIAN_PACKAGE_SUGGESTS)
# Without ddp::libtorch: no package has the PyTorch that it was built with.
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};ddp;Unspecified;/")
include(CPack)

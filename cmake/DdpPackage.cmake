# cpack -G DEB: libddp1, named by the version that programs are linked to, libddp-dev and ddp-tools. Included last: it takes what
# the variables are then.
set(CPACK_PACKAGE_NAME ddp)
set(CPACK_PACKAGE_CONTACT "The authors of ddp")
set(CPACK_PACKAGE_VENDOR "The authors of ddp")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL dev tools)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/DdpDebian.cmake)
foreach(component RUNTIME DEV TOOLS)  # what was one package once
  set(CPACK_DEBIAN_${component}_PACKAGE_REPLACES ddp)
  set(CPACK_DEBIAN_${component}_PACKAGE_CONFLICTS ddp)
endforeach()
set(about "Each process trains on its share of the data, and gradients are averaged in
buckets while the backward pass is still running.")

if(BUILD_SHARED_LIBS)
  list(PREPEND CPACK_COMPONENTS_ALL runtime)
  get_target_property(so_version ddp_shared SOVERSION)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libddp${so_version})
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)  # what it loads, as dpkg-shlibdeps finds it
  set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "distributed data parallel training (shared library)\n${about}")
  # Packages of programs depend on what `shlibs` says; by the trigger the dynamic linker learns of the library.
  file(WRITE ${PROJECT_BINARY_DIR}/debian/shlibs "libddp ${so_version} libddp${so_version} (>= ${PROJECT_VERSION})\n")
  file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/shlibs ${PROJECT_BINARY_DIR}/debian/triggers)
  set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libddp${so_version} (= ${PROJECT_VERSION})")
endif()

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libddp-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_DESCRIPTION "distributed data parallel training (development files)\n${about}
.\nThis package has the headers, the static library, and what CMake and\npkg-config read.")
# What building against it takes.
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "ddp-tools, g++")
set(suggested cmake pkg-config)
if(DDP_HAS_MPI)
  list(APPEND suggested libopenmpi-dev)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS openmpi-bin)
endif()
if(DDP_HAS_OPENSSL)
  list(APPEND suggested libssl-dev)
endif()
list(JOIN suggested ", " CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS)

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME ddp-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "distributed data parallel training (launcher)\n${about}
.\nThis package has ddp-launch, which starts the processes, watches them, and\nsays which one failed first and why, and ddp-bench.")
include(CPack)

# What the library links of MPI and OpenSSL, as targets: the build and the installed package config use this file, so
# that no path of the build machine gets into the package. Call after find_package() found the library.

# ddp_mpi: the libraries of MPI's C interface.
macro(ddp_define_mpi)
  if(NOT TARGET ddp_mpi)
    add_library(ddp_mpi INTERFACE IMPORTED GLOBAL)
    set(ddp_mpi_libraries ${MPI_CXX_LIBRARIES})
    list(FILTER ddp_mpi_libraries EXCLUDE REGEX "mpi_cxx|mpichcxx|mpicxx")  # of the C++ interface
    set_target_properties(ddp_mpi PROPERTIES INTERFACE_LINK_LIBRARIES "${ddp_mpi_libraries}")
  endif()
endmacro()

# ddp_openssl: SHA-256 for checkpoints. Programs without checkpoints do not load it: that would take 1 ms.
macro(ddp_define_openssl)
  if(NOT TARGET ddp_openssl)
    add_library(ddp_openssl INTERFACE IMPORTED GLOBAL)
    set_target_properties(ddp_openssl PROPERTIES
      INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--as-needed;${OPENSSL_CRYPTO_LIBRARY};-Wl,--pop-state"
      INTERFACE_INCLUDE_DIRECTORIES "${OPENSSL_INCLUDE_DIR}")
  endif()
endmacro()

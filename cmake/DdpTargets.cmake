# What every target of this project shares: the language level, warnings, sanitizers.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_package(Threads REQUIRED)

# ddp_target(name): our settings for one of our own targets.
function(ddp_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                         -Wnon-virtual-dtor -Woverloaded-virtual)
  if(DDP_WARNINGS_AS_ERRORS)
    target_compile_options(${name} PRIVATE -Werror)
  endif()
  if(DDP_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${DDP_SANITIZE} -fno-sanitize-recover=all
                                           -fno-omit-frame-pointer)
    target_link_options(${name} PRIVATE -fsanitize=${DDP_SANITIZE})
  endif()
endfunction()

# Tests of what the examples share.
find_package(ZLIB REQUIRED)
foreach(name nn_gemm nn_mlp nn_optimizer)
  ddp_add_test(${name} LABEL unit ONE_THREAD SOURCES examples/${name}_test.cpp LIBRARIES ddp_examples_nn)
endforeach()
ddp_add_test(nn_modules LABEL unit SOURCES examples/nn_modules_test.cpp LIBRARIES ddp_examples_nn ddp_cpu_test_devices)
ddp_add_test(idx LABEL unit ONE_THREAD SOURCES examples/idx_test.cpp LIBRARIES ddp_examples_data ZLIB::ZLIB)
add_test(NAME unit.readme COMMAND ${CMAKE_COMMAND} -D ROOT=${PROJECT_SOURCE_DIR}
                                  -P ${CMAKE_CURRENT_SOURCE_DIR}/readme_test.cmake)
set_tests_properties(unit.readme PROPERTIES LABELS unit TIMEOUT 30)

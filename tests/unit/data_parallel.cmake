# DataParallel and its parts, on virtual CPUs.
include(${PROJECT_SOURCE_DIR}/tests/support/data_parallel_sources.cmake)
ddp_add_test(data_parallel LABEL unit SOURCES ${DDP_DATA_PARALLEL_TESTS} LIBRARIES ddp_cpu_test_devices)

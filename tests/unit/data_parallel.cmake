# DataParallel and its parts, on virtual CPUs.
include(${PROJECT_SOURCE_DIR}/tests/support/data_parallel_sources.cmake)
ddp_add_test(data_parallel LABEL unit SOURCES ${DDP_DATA_PARALLEL_TESTS} data_parallel/backward_progress_test.cpp
             data_parallel/passes_test.cpp data_parallel/streams_test.cpp data_parallel/replica_devices_test.cpp data_parallel/replica_set_test.cpp
             LIBRARIES ddp_cpu_test_devices)

# The suites of DataParallel, in tests/unit: they run on virtual CPUs, and in tests/gpu on GPUs.
set(DDP_DATA_PARALLEL_TESTS comm/add_elements_test.cpp)
foreach(name data_parallel errors hooks memory direct_exchange gather deferred_release replicate scatter)
  list(APPEND DDP_DATA_PARALLEL_TESTS data_parallel/${name}_test.cpp)
endforeach()

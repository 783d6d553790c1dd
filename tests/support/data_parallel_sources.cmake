# The suites of DataParallel, in tests/unit: they run on virtual CPUs, and in tests/gpu on GPUs.
set(DDP_DATA_PARALLEL_TESTS add_elements_test.cpp data_parallel_test.cpp data_parallel_errors_test.cpp
                            data_parallel_hooks_test.cpp data_parallel_memory_test.cpp direct_exchange_test.cpp
                            gather_test.cpp kept_values_test.cpp replicate_test.cpp scatter_test.cpp)

# DataParallel in one process: the suites of tests/unit, with several virtual devices on one GPU, and with several GPUs.
include(${PROJECT_SOURCE_DIR}/tests/support/data_parallel_sources.cmake)
list(TRANSFORM DDP_DATA_PARALLEL_TESTS PREPEND ${PROJECT_SOURCE_DIR}/tests/unit/ OUTPUT_VARIABLE sources)
add_executable(gpu_data_parallel data_parallel_gpu_test.cpp ${sources})
ddp_target(gpu_data_parallel)
target_link_libraries(gpu_data_parallel PRIVATE ddp::ddp ddp_gpu_test_devices CUDA::cudart_static)
if(DDP_BUILD_EXAMPLES)
  target_sources(gpu_data_parallel PRIVATE ${PROJECT_SOURCE_DIR}/tests/unit/examples/nn_modules_test.cpp)
  target_link_libraries(gpu_data_parallel PRIVATE ddp_examples_nn)
endif()
foreach(n 1 2 3 4)
  set(entry gpu.data_parallel.virtual${n})
  ddp_test_entry(${entry} gpu 120 gpu_data_parallel)
  set_tests_properties(${entry} PROPERTIES SKIP_RETURN_CODE 69
                       ENVIRONMENT "CUDA_VISIBLE_DEVICES=0;DDP_VIRTUAL_DEVICES=${n};DDP_TEST_GPUS=${n}")
endforeach()
# With one queue for all streams of a card they run one behind the other, which CUDA may do at any time: nobody may wait
# for what is enqueued later. (A test that holds streams back waits for the others.)
ddp_test_entry(gpu.data_parallel.one_queue gpu 120 gpu_data_parallel --gtest_filter=-*WhileTheBackwardPassStillRuns)
set_tests_properties(gpu.data_parallel.one_queue PROPERTIES SKIP_RETURN_CODE 69
                     ENVIRONMENT "CUDA_VISIBLE_DEVICES=0;DDP_VIRTUAL_DEVICES=4;DDP_TEST_GPUS=4;CUDA_DEVICE_MAX_CONNECTIONS=1")
# Two cards, each cut in two.
ddp_test_entry(multi_gpu.data_parallel.gpus2.virtual2 multi_gpu 120 gpu_data_parallel)
set_tests_properties(multi_gpu.data_parallel.gpus2.virtual2 PROPERTIES SKIP_RETURN_CODE 69
                     ENVIRONMENT "CUDA_VISIBLE_DEVICES=0,1;DDP_VIRTUAL_DEVICES=2;DDP_TEST_GPUS=4")
foreach(n 2 4 8)
  set(gpus 0)
  foreach(i RANGE 2 ${n})
    math(EXPR gpu "${i} - 1")
    string(APPEND gpus ",${gpu}")
  endforeach()
  set(entry multi_gpu.data_parallel.gpus${n})
  ddp_test_entry(${entry} multi_gpu 300 gpu_data_parallel)
  set_tests_properties(${entry} PROPERTIES SKIP_RETURN_CODE 69
                       ENVIRONMENT "CUDA_VISIBLE_DEVICES=${gpus};DDP_TEST_GPUS=${n}")
endforeach()

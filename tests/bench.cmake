# Tests of ddp-bench: its parts alone, and the program under ddp-launch.
find_package(nlohmann_json 3.11 REQUIRED)
ddp_add_test(bench LABEL unit SOURCES unit/bench/bench_test.cpp unit/bench/merge_traces_test.cpp LIBRARIES ddp_bench_parts nlohmann_json::nlohmann_json)

ddp_add_test(ddp_bench LABEL multi_process SOURCES multi_process/ddp_bench_test.cpp
             LIBRARIES nlohmann_json::nlohmann_json)
target_compile_definitions(multi_process_ddp_bench PRIVATE DDP_LAUNCH="$<TARGET_FILE:ddp-launch>"
                                                           DDP_BENCH="$<TARGET_FILE:ddp-bench>")
add_dependencies(multi_process_ddp_bench ddp-launch ddp-bench)

# Whether it works on GPUs, not how fast it is: the programs themselves fail where a sum is wrong.
if(DDP_HAS_CUDA)
  ddp_add_test(bench_gpu LABEL gpu GPU SOURCES gpu/bench_gpu_test.cpp
               LIBRARIES ddp_bench_parts ddp_gpu_main nlohmann_json::nlohmann_json)
  ddp_alone(gpu.bench_gpu)
  target_compile_definitions(gpu_bench_gpu PRIVATE DDP_LAUNCH="$<TARGET_FILE:ddp-launch>"
                                                   DDP_BENCH="$<TARGET_FILE:ddp-bench>")
  add_dependencies(gpu_bench_gpu ddp-launch ddp-bench)
  foreach(n 1 2)
    ddp_gpus_test_entry(bench_all_reduce ${n} 120 $<TARGET_FILE:ddp-bench> all-reduce --max 16MiB --rounds 5)
    ddp_gpus_test_entry(bench_overlap ${n} 120 $<TARGET_FILE:ddp-bench> overlap --quick)
  endforeach()
endif()

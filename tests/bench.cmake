# Tests of ddp-bench: its parts alone, and the program under ddp-launch.
find_package(nlohmann_json 3.11 REQUIRED)
ddp_add_test(bench LABEL unit SOURCES unit/bench_test.cpp LIBRARIES ddp_bench_parts nlohmann_json::nlohmann_json)

ddp_add_test(ddp_bench LABEL multi_process SOURCES multi_process/ddp_bench_test.cpp
             LIBRARIES nlohmann_json::nlohmann_json)
target_compile_definitions(multi_process_ddp_bench PRIVATE DDP_LAUNCH="$<TARGET_FILE:ddp-launch>"
                                                           DDP_BENCH="$<TARGET_FILE:ddp-bench>")
add_dependencies(multi_process_ddp_bench ddp-launch ddp-bench)

# The examples on GPUs: their layers, their training, and the programs.
find_package(nlohmann_json REQUIRED)
ddp_add_test(nn_layers LABEL gpu GPU SOURCES nn_layers_test.cpp LIBRARIES ddp_gpu_main ddp_examples_data)
ddp_add_test(train_mlp LABEL gpu GPUS 1 2 3 4 8 SOURCES train_mlp_gpu_test.cpp
             LIBRARIES ddp_multi_process_main ddp_examples_train_mlp TIMEOUT 300)
ddp_add_test(examples LABEL gpu GPU SOURCES examples_test.cpp LIBRARIES ddp_gpu_main nlohmann_json::nlohmann_json
             TIMEOUT 300)
target_compile_definitions(gpu_examples PRIVATE DDP_LAUNCH="$<TARGET_FILE:ddp-launch>"
                           TRAIN_MLP="$<TARGET_FILE:train_mlp>" HELLO_ALL_REDUCE="$<TARGET_FILE:hello_all_reduce>"
                           FIRST_STEPS="$<TARGET_FILE:first_steps>" DATA_PARALLEL="$<TARGET_FILE:data_parallel>")
add_dependencies(gpu_examples data_parallel ddp-launch train_mlp hello_all_reduce first_steps)
# Ranks that are lost: on one GPU that ranks share, and with NCCL on one each.
add_executable(rebuild_rank rebuild_rank.cu)
ddp_target(rebuild_rank)
target_link_libraries(rebuild_rank PRIVATE ddp::ddp CUDA::cudart_static)
ddp_add_test(survive LABEL gpu GPU SOURCES survive_gpu_test.cpp LIBRARIES ddp_gpu_main ddp_launched_job TIMEOUT 600)
set_tests_properties(gpu.survive PROPERTIES ENVIRONMENT "GTEST_FILTER=*Shared*")
ddp_test_entry(multi_gpu.survive multi_gpu 600 gpu_survive)
set_tests_properties(multi_gpu.survive PROPERTIES SKIP_RETURN_CODE 69
                     ENVIRONMENT "GTEST_FILTER=*OneEach*;DDP_TEST_GPUS=2")
target_compile_definitions(gpu_survive PRIVATE DDP_REBUILD_RANK="$<TARGET_FILE:rebuild_rank>"
                                               TRAIN_MLP="$<TARGET_FILE:train_mlp>")
add_dependencies(gpu_survive rebuild_rank train_mlp)

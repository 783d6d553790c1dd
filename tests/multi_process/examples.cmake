# The example programs as users run them.
find_package(nlohmann_json REQUIRED)
ddp_add_test(train_mlp LABEL multi_process SOURCES train_mlp_test.cpp LIBRARIES nlohmann_json::nlohmann_json TIMEOUT 300)
target_compile_definitions(multi_process_train_mlp PRIVATE DDP_LAUNCH="$<TARGET_FILE:ddp-launch>"
                           TRAIN_MLP="$<TARGET_FILE:train_mlp>" HELLO_ALL_REDUCE="$<TARGET_FILE:hello_all_reduce>"
                           FIRST_STEPS="$<TARGET_FILE:first_steps>" IN_PLACE="$<TARGET_FILE:in_place>"
                           SHARDED="$<TARGET_FILE:sharded>")
add_dependencies(multi_process_train_mlp ddp-launch train_mlp hello_all_reduce first_steps in_place sharded)
ddp_add_test(data_parallel LABEL multi_process SOURCES data_parallel_test.cpp LIBRARIES nlohmann_json::nlohmann_json)
target_compile_definitions(multi_process_data_parallel PRIVATE TRAIN_MLP="$<TARGET_FILE:train_mlp>"
                                                               DATA_PARALLEL="$<TARGET_FILE:data_parallel>")
add_dependencies(multi_process_data_parallel train_mlp data_parallel)
ddp_add_test(optimizer_per_bucket LABEL multi_process SOURCES optimizer_per_bucket_test.cpp RANKS 1 2 3 GPUS 1 2 VIRTUAL 2
             LIBRARIES ddp_multi_process_main ddp_examples_nn)
ddp_add_test(optimizer_sharded LABEL multi_process SOURCES optimizer_sharded_test.cpp RANKS 1 2 3 4 MPIRANKS 2 GPUS 1 2
             VIRTUAL 2 LIBRARIES ddp_multi_process_main ddp_examples_nn)
if(DDP_MPIRUN)
  ddp_add_test(mpirun_examples LABEL multi_process SOURCES mpirun_examples_test.cpp)
  target_compile_definitions(multi_process_mpirun_examples PRIVATE DDP_MPIRUN="${DDP_MPIRUN}"
                             DDP_LAUNCH="$<TARGET_FILE:ddp-launch>" TRAIN_MLP="$<TARGET_FILE:train_mlp>"
                             HELLO_ALL_REDUCE="$<TARGET_FILE:hello_all_reduce>")
  add_dependencies(multi_process_mpirun_examples ddp-launch train_mlp hello_all_reduce)
endif()

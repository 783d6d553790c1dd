# Ranks that mpirun starts.
find_package(nlohmann_json REQUIRED)
ddp_add_test(own_mpi LABEL multi_process SOURCES own_mpi_test.cpp MPIRANKS 2 LIBRARIES ddp_mpi)
ddp_add_test(mpirun LABEL multi_process SOURCES mpirun_test.cpp LIBRARIES nlohmann_json::nlohmann_json)
target_compile_definitions(multi_process_mpirun PRIVATE DDP_MPIRUN="${DDP_MPIRUN}"
                           LAUNCHED_RANK="$<TARGET_FILE:launched_rank>" OWN_MPI="$<TARGET_FILE:multi_process_own_mpi>")
add_dependencies(multi_process_mpirun launched_rank multi_process_own_mpi)

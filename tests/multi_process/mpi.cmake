# Ranks that mpirun starts.
find_package(nlohmann_json REQUIRED)
ddp_add_test(own_mpi LABEL multi_process SOURCES own_mpi_test.cpp MPIRANKS 2 LIBRARIES ddp_mpi ddp_mpi_headers)
ddp_add_test(mpi_world LABEL multi_process SOURCES mpi_world_test.cpp MPIRANKS 4 LIBRARIES ddp_mpi ddp_mpi_headers)
ddp_test_entry(multi_process.mpi_world.without_mpi multi_process 60 env MPI_WORLD_MODE=1 $<TARGET_FILE:multi_process_mpi_world>)
ddp_add_test(mpi_communicator LABEL multi_process SOURCES mpi_communicator_test.cpp MPIRANKS 2 4
             LIBRARIES ddp_communicator_contract ddp_multi_process_main TIMEOUT 300)
# As between hosts: over sockets instead of shared memory.
ddp_mpi_test_entry(multi_process.mpi_communicator.tcp2 multi_process 2 300 $<TARGET_FILE:multi_process_mpi_communicator>)
set_property(TEST multi_process.mpi_communicator.tcp2 APPEND PROPERTY ENVIRONMENT "OMPI_MCA_btl=tcp,self")
# Training, with the backend of several hosts.
ddp_mpi_test_entry(multi_process.ddp_oracle.mpi_backend3 multi_process 3 900 $<TARGET_FILE:multi_process_ddp_oracle>)
set_property(TEST multi_process.ddp_oracle.mpi_backend3 APPEND PROPERTY ENVIRONMENT "DDP_BACKEND=mpi")
ddp_mpi_test_entry(multi_process.buffer_sync.mpi_backend3 multi_process 3 300 $<TARGET_FILE:multi_process_buffer_sync>)
set_property(TEST multi_process.buffer_sync.mpi_backend3 APPEND PROPERTY ENVIRONMENT "DDP_BACKEND=mpi")
ddp_add_test(mpirun LABEL multi_process TIMEOUT 300 SOURCES mpirun_test.cpp
             LIBRARIES ddp_launched_job nlohmann_json::nlohmann_json)
add_library(faulty_mpi SHARED ${PROJECT_SOURCE_DIR}/tests/support/fakes/faulty_mpi.cpp)
ddp_target(faulty_mpi)
target_link_libraries(faulty_mpi PRIVATE ddp_mpi ddp_mpi_headers)
target_compile_definitions(multi_process_mpirun PRIVATE DDP_MPIRUN="${DDP_MPIRUN}"
                           DDP_LAUNCH="$<TARGET_FILE:ddp-launch>" FAULTY_MPI="$<TARGET_FILE:faulty_mpi>"
                           OWN_MPI="$<TARGET_FILE:multi_process_own_mpi>"
                           DDP_TRAINING_RANK="$<TARGET_FILE:training_rank>")
add_dependencies(multi_process_mpirun faulty_mpi multi_process_own_mpi training_rank)

ddp_add_test(launcher_mpi LABEL multi_process TIMEOUT 300 SOURCES launcher_mpi_test.cpp launcher_mpi_ends_test.cpp
             LIBRARIES ddp_launched_job)
target_compile_definitions(multi_process_launcher_mpi PRIVATE WORLD_TEST="$<TARGET_FILE:multi_process_world>"
                           DDP_TRAINING_RANK="$<TARGET_FILE:training_rank>"
                           DDP_LOCAL_AGENT="${PROJECT_SOURCE_DIR}/tests/support/launcher/local_agent.sh")
add_dependencies(multi_process_launcher_mpi multi_process_world training_rank)

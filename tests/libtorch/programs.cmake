# Programs that use ddp::libtorch, as users run them: what Python reads, the examples, the comparison.
find_package(Python3 QUIET COMPONENTS Interpreter)
# PyTorch's own Python, where its folder lies in a virtual environment.
set(torch_python "${LibTorch_PREFIX}/../../../../bin/python3")
if(NOT EXISTS "${torch_python}")
  set(torch_python "")
endif()
if(Python3_FOUND AND DDP_HAS_OPENSSL)
  add_executable(libtorch_checkpoint_for_python ${CMAKE_CURRENT_LIST_DIR}/checkpoint_for_python.cpp)
  ddp_target(libtorch_checkpoint_for_python)
  target_link_libraries(libtorch_checkpoint_for_python PRIVATE ddp::libtorch)
  ddp_test_entry(libtorch.checkpoint_python libtorch 300 ${Python3_EXECUTABLE}
                 ${CMAKE_CURRENT_LIST_DIR}/checkpoint_python_test.py $<TARGET_FILE:ddp-launch>
                 $<TARGET_FILE:libtorch_checkpoint_for_python> ${CMAKE_CURRENT_BINARY_DIR}/checkpoint_python ${torch_python})
  set_tests_properties(libtorch.checkpoint_python PROPERTIES SKIP_RETURN_CODE 77)
  list(APPEND installed libtorch_checkpoint_for_python)
endif()
if(Python3_FOUND AND TARGET gpt2)
  ddp_test_entry(libtorch.gpt2 libtorch 300 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/gpt2_test.py
                 $<TARGET_FILE:ddp-launch> $<TARGET_FILE:gpt2>)
  ddp_test_entry(gpu.libtorch_gpt2 gpu 300 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/gpt2_test.py
                 $<TARGET_FILE:ddp-launch> $<TARGET_FILE:gpt2> --gpus 0 --virtual 3 3)
  ddp_test_entry(multi_gpu.libtorch_gpt2 multi_gpu 300 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/gpt2_test.py
                 $<TARGET_FILE:ddp-launch> $<TARGET_FILE:gpt2> --gpus 0,1 2)
  set_tests_properties(gpu.libtorch_gpt2 multi_gpu.libtorch_gpt2 PROPERTIES SKIP_RETURN_CODE 69)
  list(APPEND installed gpt2 train_cnn resnet50)
endif()
if(Python3_FOUND AND TARGET compare_ddp_ours)
  ddp_test_entry(libtorch.compare_ddp libtorch 600 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/compare_ddp_test.py
                 ${PROJECT_SOURCE_DIR}/bench/compare_ddp/compare.py $<TARGET_FILE:ddp-launch>
                 $<TARGET_FILE_DIR:compare_ddp_ours> ${CMAKE_CURRENT_BINARY_DIR}/compare_ddp ${torch_python})
  list(APPEND installed compare_ddp_ours compare_ddp_c10d)
endif()

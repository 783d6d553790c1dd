# The examples and the comparison that use ddp::libtorch, as users run them.
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND AND TARGET gpt2)
  ddp_test_entry(libtorch.gpt2 libtorch 300 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/gpt2_test.py
                 $<TARGET_FILE:ddp-launch> $<TARGET_FILE:gpt2>)
  list(APPEND installed gpt2 train_cnn resnet50)
endif()
if(Python3_FOUND AND TARGET compare_ddp_ours)
  # PyTorch's own Python, where its folder lies in a virtual environment.
  set(torch_python "${LibTorch_PREFIX}/../../../../bin/python3")
  if(NOT EXISTS "${torch_python}")
    set(torch_python "")
  endif()
  ddp_test_entry(libtorch.compare_ddp libtorch 600 ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/compare_ddp_test.py
                 ${PROJECT_SOURCE_DIR}/bench/compare_ddp/compare.py $<TARGET_FILE:ddp-launch>
                 $<TARGET_FILE_DIR:compare_ddp_ours> ${CMAKE_CURRENT_BINARY_DIR}/compare_ddp ${torch_python})
  list(APPEND installed compare_ddp_ours compare_ddp_c10d)
endif()

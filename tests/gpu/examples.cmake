# The examples on GPUs: their layers, and the programs.
ddp_add_test(nn_layers LABEL gpu GPU SOURCES nn_layers_test.cpp LIBRARIES ddp_gpu_main ddp_examples_data)

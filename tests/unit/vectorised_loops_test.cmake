# The reduction loops are compiled to vector instructions: OBJECT, what they were compiled to; OBJDUMP.
execute_process(COMMAND "${OBJDUMP}" --disassemble --no-show-raw-insn "${OBJECT}" OUTPUT_VARIABLE code
                RESULT_VARIABLE failed ERROR_VARIABLE said)
if(failed)
  message(FATAL_ERROR "${OBJDUMP} cannot read ${OBJECT}: ${said}")
endif()
# Packed: four floats, two doubles, whole integers at once. An element at a time they would be addss, addsd, add.
foreach(instruction addps addpd paddd)
  if(NOT code MATCHES "[ \t]v?${instruction}[ \t]")
    message(FATAL_ERROR "${OBJECT} has no ${instruction}: sums run an element at a time. Is reduce_kernels.cpp compiled "
                        "with -O3 (runtime/comm/CMakeLists.txt)?")
  endif()
endforeach()

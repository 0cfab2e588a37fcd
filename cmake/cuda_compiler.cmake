# Whether the CUDA compiler is one that the sources (cudaStreamGetDevice), their flags (--compress-mode)
# and the default architectures (Blackwell) need: nvcc of CUDA 12.8 or later. Included by cuda.cmake,
# before CMake itself tries the compiler and fails in words of its own; tests run it alone:
#
#   cmake -DFASTACT_CUDA=ON -DCMAKE_CUDA_COMPILER=nvcc -P cuda_compiler.cmake
#
# FASTACT_CUDA is OFF afterwards where AUTO may not build.
set(FASTACT_CUDA_NEEDED 12.8)
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version
                OUTPUT_VARIABLE version ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT version MATCHES "Cuda compilation tools, release ([0-9]+\\.[0-9]+)")
  set(problem "is not NVIDIA's nvcc")
elseif(CMAKE_MATCH_1 VERSION_LESS FASTACT_CUDA_NEEDED)
  set(problem "is of CUDA ${CMAKE_MATCH_1}")
else()
  set(problem "")
endif()
if(problem)
  string(CONCAT problem
    "fastact: the CUDA extension needs nvcc of CUDA ${FASTACT_CUDA_NEEDED} or later, and "
    "${CMAKE_CUDA_COMPILER} ${problem}. Put another one on the PATH or set CUDACXX; "
    "FASTACT_CUDA=OFF builds the CPU library alone.")
  if(FASTACT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "${problem}")
  endif()
  message(WARNING "${problem}")
  set(FASTACT_CUDA OFF)
endif()

# What fastact._cuda (src/cuda) and fastact._cuda_emulated (tests/cuda_emulation) have in common:
# the kernels, by a CUDA compiler or by the host's; and whether there is such a compiler.
#
# Each .cu of a family is compiled once a storage type: small units, built side by side.

file(GLOB_RECURSE FASTACT_CUDA_KERNELS CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/src/cuda/*.cu)
set(FASTACT_CUDA_DEVICE ${PROJECT_SOURCE_DIR}/src/cuda/core/device.cu)
list(REMOVE_ITEM FASTACT_CUDA_KERNELS ${FASTACT_CUDA_DEVICE})
set(FASTACT_STORAGES f16 bf16 f32 f64)
set(FASTACT_STORAGE_f16 fastact::f16)
set(FASTACT_STORAGE_bf16 fastact::bf16)
set(FASTACT_STORAGE_f32 float)
set(FASTACT_STORAGE_f64 double)
file(GLOB FASTACT_CUDA_BINDINGS CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/src/cuda/binding/*.cpp)

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT pybind11_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 CONFIG REQUIRED)

# Object libraries of all kernels, one a storage type, and of device.cu: of the sources themselves, or
# of files that the caller has under `folder` for each, named as it is. Gives FASTACT_TARGETS and
# FASTACT_OBJECTS.
function(fastact_cuda_objects prefix folder)
  set(targets "")
  foreach(path IN LISTS FASTACT_CUDA_KERNELS FASTACT_CUDA_DEVICE)
    get_filename_component(name ${path} NAME_WE)
    set(source ${path})
    if(folder)
      set(source ${folder}/${name}.cpp)
    endif()
    if(path STREQUAL FASTACT_CUDA_DEVICE)
      add_library(${prefix}_${name} OBJECT ${source})
      list(APPEND targets ${prefix}_${name})
      continue()
    endif()
    foreach(storage IN LISTS FASTACT_STORAGES)
      add_library(${prefix}_${name}_${storage} OBJECT ${source})
      target_compile_definitions(${prefix}_${name}_${storage} PRIVATE
        FASTACT_STORAGE=${FASTACT_STORAGE_${storage}})
      list(APPEND targets ${prefix}_${name}_${storage})
    endforeach()
  endforeach()
  foreach(target IN LISTS targets)
    target_include_directories(${target} PRIVATE
      ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  endforeach()
  list(TRANSFORM targets REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  set(FASTACT_TARGETS ${targets} PARENT_SCOPE)
  set(FASTACT_OBJECTS ${objects} PARENT_SCOPE)
endfunction()

# Whether this machine has a GPU: what AUTO goes by, for a compile for all generations takes minutes
# that a machine without any would spend for nothing.
execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE missing)
if(missing EQUAL 0 AND gpus MATCHES "GPU 0")
  set(FASTACT_GPU_PRESENT ON)
else()
  set(FASTACT_GPU_PRESENT OFF)
endif()
if(FASTACT_CUDA STREQUAL "AUTO" AND NOT FASTACT_GPU_PRESENT)
  message(STATUS "fastact: no GPU here, so no CUDA extension; FASTACT_CUDA=ON builds it all the same")
  set(FASTACT_CUDA OFF)
endif()

if(NOT FASTACT_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND FASTACT_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "FASTACT_CUDA=ON, but no CUDA compiler was found. Put nvcc on the PATH or set CUDACXX; "
      "FASTACT_CUDA=OFF builds the CPU library alone.")
  endif()
endif()

if(CMAKE_CUDA_COMPILER AND NOT FASTACT_CUDA STREQUAL "OFF")
  include(${PROJECT_SOURCE_DIR}/cmake/cuda_compiler.cmake)
endif()

if(CMAKE_CUDA_COMPILER AND NOT FASTACT_CUDA STREQUAL "OFF")
  # The machine's own GPU, or else each generation that CUDA 13 compiles for: code for a capability
  # runs on the later ones of its generation too (8.6 on 8.9, 10.0 on 10.3, 12.0 on 12.1). PTX of 9.0
  # is for those between and after them.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    if(FASTACT_GPU_PRESENT)
      set(CMAKE_CUDA_ARCHITECTURES native)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 90 100-real 120-real)
    endif()
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  set(FASTACT_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES})
  if(FASTACT_CUDA_ARCHITECTURES STREQUAL "native" AND CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]")
    set(FASTACT_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
  endif()
  string(REPLACE ";" " " FASTACT_CUDA_ARCHITECTURES "${FASTACT_CUDA_ARCHITECTURES}")
  message(STATUS "fastact: CUDA extension for architectures ${FASTACT_CUDA_ARCHITECTURES}")
else()
  set(FASTACT_CUDA OFF)
endif()

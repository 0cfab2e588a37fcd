# fastact._cuda, by a CUDA compiler, and fastact._cuda_emulated, of the same sources by the host's.
#
# Each .cu of a family is compiled once a storage type: small units, built side by side.

file(GLOB_RECURSE FASTACT_CUDA_KERNELS CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
  src/cuda/*.cu)
set(FASTACT_CUDA_DEVICE src/cuda/core/device.cu)
list(REMOVE_ITEM FASTACT_CUDA_KERNELS ${FASTACT_CUDA_DEVICE})
set(FASTACT_STORAGES f16 bf16 f32 f64)
set(FASTACT_STORAGE_f16 fastact::f16)
set(FASTACT_STORAGE_bf16 fastact::bf16)
set(FASTACT_STORAGE_f32 float)
set(FASTACT_STORAGE_f64 double)
file(GLOB FASTACT_CUDA_BINDINGS CONFIGURE_DEPENDS src/cuda/binding/*.cpp)
string(LENGTH "${CMAKE_CURRENT_SOURCE_DIR}/" FASTACT_SOURCE_ROOT_LENGTH)

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
    target_include_directories(${target} PRIVATE src tests)
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
  # The machine's own GPU, or else each generation that CUDA 13 compiles for, and PTX for the next.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    if(FASTACT_GPU_PRESENT)
      set(CMAKE_CUDA_ARCHITECTURES native)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 90)
    endif()
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
  if(architectures STREQUAL "native" AND CMAKE_CUDA_ARCHITECTURES_NATIVE MATCHES "^[0-9]")
    set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
  endif()
  string(REPLACE ";" " " architectures "${architectures}")
  message(STATUS "fastact: CUDA extension for architectures ${architectures}")

  set(warnings -Wall,-Wextra)
  if(FASTACT_WERROR)
    string(APPEND warnings ",-Werror")
    set(werror --Werror=all-warnings)
  endif()
  fastact_cuda_objects(cuda "")
  foreach(target IN LISTS FASTACT_TARGETS)
    target_compile_options(${target} PRIVATE
      -fmad=false --compress-mode=size ${werror} -Xcompiler=${warnings},-fvisibility=hidden)
    target_compile_definitions(${target} PRIVATE
      FASTACT_SOURCE_ROOT_LENGTH=${FASTACT_SOURCE_ROOT_LENGTH}
      "FASTACT_CUDA_ARCHITECTURES=\"${architectures}\"")
  endforeach()

  pybind11_add_module(_cuda MODULE ${FASTACT_CUDA_BINDINGS} ${FASTACT_OBJECTS})
  target_include_directories(_cuda PRIVATE src)
  target_include_directories(_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_compile_options(_cuda PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${FASTACT_WARNINGS}>)
  target_compile_definitions(_cuda PRIVATE
    FASTACT_SOURCE_ROOT_LENGTH=${FASTACT_SOURCE_ROOT_LENGTH})
  install(TARGETS _cuda DESTINATION fastact)
endif()

if(FASTACT_CUDA_EMULATION)
  # A file has one language in a build: the emulated device compiles C++ files that include the .cu.
  foreach(path IN LISTS FASTACT_CUDA_KERNELS FASTACT_CUDA_DEVICE)
    get_filename_component(name ${path} NAME_WE)
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/emulated/${name}.cpp
         CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${path}\"\n")
  endforeach()
  file(GLOB FASTACT_EMULATION CONFIGURE_DEPENDS tests/cuda_emulation/*.cpp)
  fastact_cuda_objects(emulated ${CMAKE_CURRENT_BINARY_DIR}/emulated)
  pybind11_add_module(_cuda_emulated MODULE NO_EXTRAS
    ${FASTACT_CUDA_BINDINGS} ${FASTACT_EMULATION} ${FASTACT_OBJECTS})
  target_include_directories(_cuda_emulated PRIVATE src tests)
  # A GPU has a fused multiply-add, so this device has one; debug information names what failed.
  set(flags -O1 -g -ffp-contract=off ${FASTACT_WARNINGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # An anonymous namespace in an included file is one of a header, to GCC: here it is not.
    list(APPEND flags -Wno-subobject-linkage)
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND flags -mfma)
  endif()
  foreach(target ${FASTACT_TARGETS} _cuda_emulated)
    target_compile_options(${target} PRIVATE ${flags})
    target_compile_definitions(${target} PRIVATE
      FASTACT_CUDA_EMULATION FASTACT_SOURCE_ROOT_LENGTH=${FASTACT_SOURCE_ROOT_LENGTH}
      "FASTACT_CUDA_ARCHITECTURES=\"emulated\"")
  endforeach()
  install(TARGETS _cuda_emulated DESTINATION fastact)
endif()

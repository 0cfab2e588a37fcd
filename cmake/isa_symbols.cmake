# Of the objects that are compiled for one instruction set: every function that the linker may merge with
# one of the same name from elsewhere is in that instruction set's namespace. Of two it keeps any,
# and a processor without AVX-512 would then run the AVX-512 one.
#
#   cmake -DNM=nm -DISA=v4 -DOBJECTS=a.o|b.o -P isa_symbols.cmake
string(LENGTH "${ISA}" length)
set(namespace "7fastact${length}${ISA}")  # as C++ mangles it
string(REPLACE "|" ";" objects "${OBJECTS}")
if(NOT objects)
  message(FATAL_ERROR "no objects to look at")
endif()
execute_process(COMMAND ${NM} ${objects} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " [WVui] [^\n]+" weak "${symbols}")
list(FILTER weak EXCLUDE REGEX "${namespace}|DW\\.ref\\.")
if(weak)
  list(REMOVE_DUPLICATES weak)
  list(JOIN weak "\n " listed)
  message(FATAL_ERROR "functions of ${ISA} outside of fastact::${ISA}, which the linker may take "
                      "for all processors:\n ${listed}")
endif()

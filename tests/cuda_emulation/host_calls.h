// What a call asks of CUDA and of its framework: counted for tests and for tools that measure the
// host's part of a call.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace fastact::emulation {

// A function of the API by its name, "launch" or "allocate" (of an array). Counted while
// `count_host_calls` says so, which is returned.
bool count_host_call(const char* call);
// Begins anew.
void count_host_calls(bool counting);
const std::map<std::string, int64_t>& host_calls();

// Launches that run no kernel, check nothing and are logged where they are counted: arrays stay as
// they are.
extern bool empty_launches;

}  // namespace fastact::emulation

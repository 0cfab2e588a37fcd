// What the emulated device reports instead of computing on.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace fastact::emulation {

// A kernel did what CUDA forbids or leaves undefined; what() says what, where and by which thread.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A place in the source. As a default argument, Site::here() is the place of the call.
struct Site {
  const char* file = nullptr;
  int line = 0;
  const char* function = nullptr;

  static constexpr Site here(const char* in_file = __builtin_FILE(), int at_line = __builtin_LINE(),
                             const char* in_function = __builtin_FUNCTION()) {
    return {in_file, at_line, in_function};
  }
  bool operator==(const Site& other) const;
  std::string text() const;  // "function at file:line"
};

// Throws a Fault: `what`, then the running thread and its kernel, if one runs, and the site.
[[noreturn]] void fault(const std::string& what, const Site& site);

}  // namespace fastact::emulation

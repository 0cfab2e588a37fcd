// Parts of the CPU's headers that tests call by themselves, with the CPU's arithmetic.
#undef FASTACT_CUDA_EMULATION
#define FASTACT_ISA tested

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <thread>
#include <vector>

#include "array.h"
#include "common/math/elementary.h"
#include "cpu/core/back_off.h"

namespace py = pybind11;

void fastact::bind_headers(py::module_& m) {
  py::class_<BackOff>(m, "BackOff")
      .def(py::init<>())
      .def("is_serial",
           [](BackOff& self, int64_t time, bool cores_are_taken) {
             return self.is_serial(
                 time, 2, cores_are_taken ? +[](int) { return true; } : +[](int) { return false; });
           })
      .def("note", &BackOff::note)
      .def("note_alone", &BackOff::note_alone);
  m.def("time_alone", [](std::vector<int64_t> parts, int threads) {
    return time_alone(parts.data(), int(parts.size()), threads);
  });
  m.def("are_cores_taken", are_cores_taken);
  // Whether a region begins in a new thread whose last region took so long, where one thread takes
  // no time at all.
  m.def("begins_after", [](int64_t length) {
    bool begins = false;
    std::thread([&] {
      if (length > 0) own_back_off().note(0, length, 0);
      begins = Region().begin(2);
    }).join();
    return begins;
  });

  // Functions of math/elementary.h for float32 and float64, and the errors in ULP that it states.
  py::dict bounds;
  const auto add = [&](const char* name, double bound, auto f) {
    m.def(name, py::vectorize([f](float x) { return f(x); }));
    m.def(name, py::vectorize([f](double x) { return f(x); }));
    bounds[name] = bound;
  };
  add("exp", kExpUlp, [](auto x) { return exp_scaled<0>(x).value(); });
  add("expm1", kExpm1Ulp, [](auto x) { return exp_scaled<0>(x).minus_one(); });
  add("log1p_of_unit", kLog1pUlp, [](auto x) { return log1p_of_unit(x); });
  add("sigmoid_of", kSigmoidUlp, [](auto x) { return sigmoid_of(x); });
  add("tanh_of_magnitude", kTanhUlp, [](auto x) { return tanh_of_magnitude(x); });
  m.attr("bounds") = bounds;
}

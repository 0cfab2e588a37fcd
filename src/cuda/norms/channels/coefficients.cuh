// The coefficients by which the maps of batch_norm and of channels-last norms multiply and add.
//
// There is one set of coefficients per channel (batch_norm), or one for each channel of each
// example (channels-last norms); a coefficient index counts these sets. They are computed once a
// call, in the compute type. Where the elements of a channel follow each other in memory, the
// coefficients of a set lie together, so that a vector of the array takes them by one or two loads.
// Where channels come last, each coefficient is an array over all sets, of which a vector of the
// array takes a vector (coef_index.cuh).
#pragma once

#include <algorithm>

#include "common/norms/batch_norm.h"
#include "common/norms/norms.h"
#include "common/reductions/moments.h"
#include "cuda/activations/activate.cuh"
#include "cuda/core/api.h"
#include "cuda/core/indexing.cuh"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// scale = weight rstd. The last two are those of channels-last norms alone.
enum Coefficient : int {
  kHigh,
  kLow,
  kScale,
  kOffset,
  kMean,
  kSlope,
  kRstd,
  kWeight,
  kCoefficients
};

// data: at a multiple of 16 bytes; [coefficient index][kCoefficients] where step is kCoefficients,
// else [kCoefficients][pitch], the pitch a multiple of 8.
template <class T>
struct Coefficients {
  Compute<T>* data;
  int64_t pitch, step;  // from coefficient to coefficient, from index to index
  int64_t channels;
  int64_t inner;    // elements of one channel that follow each other
  int64_t example;  // elements of an example; 0: examples share their coefficients

  FASTACT_DEVICE Compute<T>* at(int k, int64_t coef) const {
    return data + k * pitch + coef * step;
  }

  FASTACT_DEVICE int64_t coef_of(int64_t index) const {
    const int64_t segment = inner == 1 ? index : quotient(index, inner);
    const int64_t channel = segment - quotient(segment, channels) * channels;
    return example == 0 ? channel : quotient(index, example) * channels + channel;
  }

  static int64_t bytes(int64_t count) {
    return kCoefficients * ceil_div(count, 8) * 8 * int64_t(sizeof(Compute<T>));
  }
  // side_by_side: the coefficients of one index lie together.
  void arrange(int64_t count, bool side_by_side) {
    pitch = side_by_side ? 1 : ceil_div(count, 8) * 8;
    step = side_by_side ? kCoefficients : 1;
  }
};

// The same for one element, in lane 0.
template <int... which, class T, class Use>
FASTACT_DEVICE void with_coef(const Coefficients<T>& coefs, int64_t coef, const Use& use) {
  const Compute<T> n[sizeof...(which)] = {load(coefs.at(which, coef))...};
  use(0, n);
}

// The coefficients that forward needs.
template <class T>
FASTACT_DEVICE void set_forward_coefs(const Coefficients<T>& coefs, int64_t coef, double mean,
                                      double rstd, double weight, double bias) {
  using C = Compute<T>;
  const C high = C(mean);
  store(coefs.at(kHigh, coef), high);
  store(coefs.at(kLow, coef), is_finite(double(high)) ? C(mean - double(high)) : C(0));
  store(coefs.at(kScale, coef), C(weight * rstd));
  store(coefs.at(kOffset, coef), C(bias));
}

// And those of dx, for batch_norm; the last two are not used, but read with the same vector.
template <class T>
FASTACT_DEVICE void set_backward_coefs(const Coefficients<T>& coefs, int64_t coef, double mean,
                                       double slope) {
  using C = Compute<T>;
  store(coefs.at(kMean, coef), C(mean));
  store(coefs.at(kSlope, coef), C(slope));
  store(coefs.at(kRstd, coef), C(0));
  store(coefs.at(kWeight, coef), C(0));
}

}  // namespace
FASTACT_END_NAMESPACE

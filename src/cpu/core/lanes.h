// How many partial sums a sum has. The bits of all results depend on it: reductions/kernels.h has
// the order in which a sum adds its terms.
#pragma once

namespace fastact {

constexpr int kLanes = 32;

}  // namespace fastact

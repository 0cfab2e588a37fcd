// The names of what native functions take by number, and what Python calls each list of them.
#pragma once

#include <iterator>

#include "common/activations/list.h"
#include "common/bias/channel_functions.h"
#include "common/gates/cells.h"
#include "common/norms/rows.h"
#include "common/reductions/pairs.h"
#include "common/reductions/terms.h"
#include "common/second/second.h"
#include "common/softmax/call.h"

namespace fastact {

struct NameList {
  const char* of;
  const char* const* names;
  int count;
};

template <int count>
constexpr NameList name_list(const char* of, const char* const (&names)[count]) {
  return {of, names, count};
}

constexpr NameList kNameLists[] = {
    name_list("ACTIVATIONS", kActivationNames),
    // Functions of x and of its channel's parameter; kernels count them from the last activation
    // on.
    name_list("CHANNEL_FUNCTIONS", kChannelFunctionNames),
    name_list("GATE_KINDS", kGateKindNames),
    name_list("PAIRS", kPairNames),
    name_list("REDUCTIONS", kReductionNames),
    name_list("ROW_NORMS", kRowNormNames),
    name_list("SECOND_KINDS", kSecondKindNames),
    name_list("SOFTMAX_KINDS", kSoftmaxKindNames),
    name_list("TERMS", kTermNames),
};
constexpr int kNameListCount = int(std::size(kNameLists));

}  // namespace fastact

// What the CPU's kernels make of fixed inputs, as one hash a case: the same program, compiled for
// another processor, has to print the same lines (tools/aarch64_check.sh). One thread, no Python.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "common/bias/call.h"
#include "common/core/dlpack.h"
#include "common/norms/call.h"
#include "common/norms/channel_call.h"
#include "cpu/activations/kernels.h"
#include "cpu/core/kernel_table.h"
#include "cpu/core/native_function.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/reduce.h"

using namespace fastact;

namespace {

const KernelTable* table;

using Bytes = std::vector<char>;

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t bits_at(const char* x, int64_t item) {
  uint64_t bits = 0;
  memcpy(&bits, x, item);
  return bits;
}

// One NaN is as good as another.
uint64_t without_payload(uint64_t bits, int dtype) {
  constexpr uint64_t kSign[] = {0x8000, 0x8000, 0x80000000, 0x8000000000000000};
  constexpr uint64_t kInfinity[] = {0x7c00, 0x7f80, 0x7f800000, 0x7ff0000000000000};
  return (bits & ~kSign[dtype]) > kInfinity[dtype] ? kInfinity[dtype] + 1 : bits;
}

struct Hash {
  uint64_t value = 0;
  void add(const Bytes& data, int dtype) {
    const int64_t item = item_size(dtype);
    for (size_t i = 0; i + item <= data.size(); i += item)
      value = mixed(value ^ without_payload(bits_at(data.data() + i, item), dtype));
  }
};

void print(const std::string& name, const Hash& hash) {
  printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash.value));
}

std::string dims(const std::vector<int64_t>& shape) {
  std::string made;
  for (const int64_t n : shape) made += (made.empty() ? "" : "x") + std::to_string(n);
  return made;
}

// Bit patterns: all of 16 bits; of wider types some 100 000 over all exponents and signs, the
// low bits of the significand random.
Bytes patterns(int dtype) {
  const int64_t item = item_size(dtype), count = item == 2 ? 65536 : 100'000;
  Bytes made(count * item);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random = mixed(uint64_t(i));
    const uint64_t bits = item == 2 ? uint64_t(i)
                          : item == 4
                              ? (uint64_t(i) * 42949u & 0xffffffffu) ^ (random & 0xffff)
                              : (uint64_t(i) * 184467440737095u) ^ (random & 0xffffffffffff);
    memcpy(made.data() + i * item, &bits, item);
  }
  return made;
}

// Values of mixed signs from 2^-9 on to 2^2, whose sums stay within every dtype.
Bytes values(int dtype, int64_t count, uint64_t seed) {
  const int64_t item = item_size(dtype);
  constexpr int kMantissa[] = {10, 7, 23, 52};
  constexpr uint64_t kBias[] = {15, 127, 127, 1023};
  const int mantissa = kMantissa[dtype];
  Bytes made(count * item);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random = mixed(seed * 1'000'003 + uint64_t(i));
    const uint64_t exponent = kBias[dtype] - 9 + (random >> 53) % 11;
    const uint64_t bits = (random & ((uint64_t(1) << mantissa) - 1)) | exponent << mantissa |
                          (random >> 63) << (8 * item - 1);
    memcpy(made.data() + i * item, &bits, item);
  }
  return made;
}

// An array and its strides: in C order; backwards along all axes; every second element; the axes in
// the other order.
enum Layout { kPlain, kBackward, kStepped, kTransposed, kLayouts };
constexpr const char* kLayoutNames[] = {"C", "backward", "stepped", "transposed"};

struct Array {
  Bytes memory;
  std::vector<int64_t> shape, strides;  // strides in bytes
  Operand operand;
  int dtype;

  // Elements of `from`, in C order, or zeros.
  Array(const std::vector<int64_t>& of, int type, Layout layout, const Bytes* from = nullptr)
      : shape(of), strides(of.size()), dtype(type) {
    const int64_t item = item_size(dtype), step = layout == kStepped ? 2 : 1;
    const int n = int(shape.size());
    int64_t stride = item * step, size = 1;
    for (int k = 0; k < n; ++k) {
      const int i = layout == kTransposed ? k : n - 1 - k;
      strides[i] = layout == kBackward ? -stride : stride;
      stride *= shape[i], size *= shape[i];
    }
    memory.assign(size * item * step, 0);
    operand = {memory.data() + (layout == kBackward ? (size - 1) * item : 0), n, shape.data(),
               strides.data(), 1};
    if (from)
      visit([&](int64_t index, char* at) { memcpy(at, from->data() + index * item, item); });
  }
  Array(const Array&) = delete;

  template <class Visit>
  void visit(Visit each) const {
    int64_t size = 1;
    for (const int64_t length : shape) size *= length;
    for (int64_t index = 0; index < size; ++index) {
      char* at = operand.data;
      int64_t rest = index;
      for (int i = int(shape.size()); i-- > 0; rest /= shape[i]) at += rest % shape[i] * strides[i];
      each(index, at);
    }
  }
  void add_to(Hash* hash) const {
    Bytes packed;
    const int64_t item = item_size(dtype);
    visit([&](int64_t, char* at) { packed.insert(packed.end(), at, at + item); });
    hash->add(packed, dtype);
  }
};

ArrayArgument argument(const Array& a) { return {a.operand, a.dtype, kDLCPU, 0, false}; }

// Runs a call of the native function of this name.
void run(const std::string& name, const void* call) {
  for (const NativeFunction& f : native_functions()) {
    if (name != f.table->name) continue;
    const int64_t bytes = f.workspace ? f.workspace(call, table) : 0;
    std::vector<double> workspace(bytes / 8 + 1);
    Execution execution{table, reinterpret_cast<char*>(workspace.data()), bytes};
    f.run(call, &execution);
  }
}

void activations() {
  constexpr double parameters[] = {0.25, 1.5, 0, 0, 0, 0, 0, 0};
  for (int which = 0; which < kActivations; ++which)
    for (int dtype = 0; dtype < kDTypes; ++dtype) {
      const int64_t item = item_size(dtype);
      Bytes x = patterns(dtype), dy = values(dtype, int64_t(x.size()) / item, 5), y(x.size());
      const int64_t count = int64_t(x.size()) / item;
      // In blocks of odd lengths, so that heads and rests of vectors are met everywhere.
      Hash forward, backward;
      for (const bool is_forward : {true, false}) {
        for (int64_t at = 0, n; at < count; at += n) {
          n = std::min<int64_t>(1 + int64_t(mixed(uint64_t(at)) % 600), count - at);
          char* const in = x.data() + at * item;
          char* const out = y.data() + at * item;
          char* const both[] = {in, out};
          char* const three[] = {dy.data() + at * item, in, out};
          const int64_t ahead = n % 2 * 2048;  // of prefetches, which change no bits
          if (is_forward)
            table->elementwise->forward[which][dtype](both, n, parameters, ahead);
          else
            table->elementwise->backward[which][dtype][0](three, n, parameters, ahead);
        }
        (is_forward ? forward : backward).add(y, dtype);
      }
      const std::string name = std::string(kActivationNames[which]) + " " + kDTypeNames[dtype];
      print(name + " forward", forward);
      print(name + " backward", backward);
    }
}

std::vector<int64_t> kept_shape(const std::vector<int64_t>& shape, const std::vector<char>& flags) {
  std::vector<int64_t> made(shape);
  for (size_t i = 0; i < shape.size(); ++i)
    if (flags[i]) made[i] = 1;
  return made;
}

int64_t size_of(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  return size;
}

struct Case {
  std::vector<int64_t> shape;
  std::vector<char> reduced;
};

void reductions() {
  const Case cases[] = {{{7}, {1}},
                        {{2049}, {1}},
                        {{70'001}, {1}},
                        {{3, 4100}, {0, 1}},
                        {{4100, 3}, {1, 0}},
                        {{5000, 69}, {1, 0}},
                        {{701, 7}, {0, 1}},
                        {{37, 131}, {1, 1}},
                        {{6, 5, 701}, {1, 0, 1}},
                        {{3, 8, 67}, {0, 1, 0}}};
  for (const Case& c : cases)
    for (int layout = 0; layout < kLayouts; ++layout)
      for (int dtype = 0; dtype < kDTypes; ++dtype) {
        const Bytes from = values(dtype, size_of(c.shape), 11);
        const Array x(c.shape, dtype, Layout(layout), &from);
        const std::vector<int64_t> kept = kept_shape(c.shape, c.reduced);
        bool reduced[8];
        for (size_t i = 0; i < c.reduced.size(); ++i) reduced[i] = c.reduced[i];
        const std::string name =
            dims(c.shape) + " " + kLayoutNames[layout] + " " + kDTypeNames[dtype];
        for (int term = 0; term < kTerms; ++term) {
          Array y(kept, kF64, kPlain);  // 16 bits would hide in which order they are added
          auto reducer = std::make_unique<Reducer>();
          prepare(reducer.get(), table->reduce, term, x.operand, y.operand, reduced, dtype, kF64,
                  false);
          reduce_partition(reducer.get(), 0, 1);
          Hash hash;
          y.add_to(&hash);
          print(std::string("sum of ") + kTermNames[term] + " " + name, hash);
        }
        for (const bool skips : {false, true}) {
          Array mean(kept, kF64, kPlain), low(kept, kF64, kPlain), second(kept, kF64, kPlain),
              count(kept, kF64, kPlain);
          MomentsCall call{};
          call.inputs[MomentsCall::kX] = argument(x);
          const Array* const results[] = {&mean, &low, &second, &count};
          for (int k = 0; k < MomentsCall::kResults; ++k) call.results[k] = argument(*results[k]);
          std::copy(reduced, reduced + c.reduced.size(), call.axes.flags);
          call.of_m2 = kM2, call.skips = skips;
          auto moments = std::make_unique<Reducer>();
          prepare(moments.get(), *table, call);
          reduce_partition(moments.get(), 0, 1);
          Hash hash;
          for (const Array* part : results) part->add_to(&hash);
          print((skips ? "valid moments " : "moments ") + name, hash);
        }
      }
}

struct NormCase {
  const char* name;
  std::vector<int64_t> shape;
  std::vector<char> reduced, of_parameter;
  RowNorm norm;
};

void norms() {
  const NormCase cases[] = {
      {"layer_norm", {7, 131}, {0, 1}, {0, 1}, kCentredNorm},
      {"layer_norm", {5, 2101}, {0, 1}, {0, 1}, kCentredNorm},
      {"rms_norm", {9, 67}, {0, 1}, {0, 1}, kRmsNorm},
      {"group_norm", {3, 2, 3, 7, 9}, {0, 0, 1, 1, 1}, {0, 1, 1, 0, 0}, kCentredNorm},
      {"group_norm, channels last", {3, 45, 2, 5}, {0, 1, 0, 1}, {0, 0, 1, 1}, kCentredNorm},
      {"group_norm, many channels last", {2, 45, 4, 19}, {0, 1, 0, 1}, {0, 0, 1, 1}, kCentredNorm},
      {"instance_norm", {3, 5, 701}, {0, 0, 1}, {0, 1, 0}, kCentredNorm},
  };
  for (const NormCase& c : cases)
    for (const int which : {int(k_identity), int(k_mish)})
      for (const int layout : {int(kPlain), int(kBackward), int(kStepped)})
        for (int dtype = 0; dtype < kDTypes; ++dtype) {
          const int wide = dtype == kF64 ? kF64 : kF32;
          const int64_t size = size_of(c.shape);
          const Bytes x_values = values(dtype, size, 21), dy_values = values(dtype, size, 22);
          std::vector<int64_t> stats = kept_shape(c.shape, c.reduced), of = c.shape;
          for (size_t i = 0; i < of.size(); ++i)
            if (!c.of_parameter[i]) of[i] = 1;
          const Bytes weights = values(dtype, size_of(of), 23),
                      biases = values(dtype, size_of(of), 24);
          const Array x(c.shape, dtype, Layout(layout), &x_values);
          const Array dy(c.shape, dtype, Layout(layout), &dy_values);
          Array y(c.shape, dtype, kPlain), dx(c.shape, dtype, kPlain);
          const Array weight(of, dtype, kPlain, &weights), bias(of, dtype, kPlain, &biases);
          Array dweight(of, dtype, kPlain), dbias(of, dtype, kPlain);
          Array mean(stats, wide, kPlain), rstd(stats, wide, kPlain);

          NormCall call{};
          for (size_t i = 0; i < c.shape.size(); ++i)
            call.reduced.flags[i] = c.reduced[i], call.of_parameter.flags[i] = c.of_parameter[i];
          call.data[NormCall::kX] = argument(x), call.data[NormCall::kY] = argument(y);
          if (is_centred(c.norm)) call.mean = argument(mean);
          call.rstd = argument(rstd);
          call.weight = argument(weight), call.bias = argument(bias);
          call.which = which, call.eps = 1e-5, call.norm = c.norm;
          run("norm_forward", &call);
          Hash ahead, back;
          for (const Array* made : {&y, &mean, &rstd}) made->add_to(&ahead);

          call.data[NormCall::kDy] = argument(dy), call.data[NormCall::kIn] = argument(x);
          call.data[NormCall::kDTotal] = {};
          call.data[NormCall::kDx] = argument(dx);
          call.dweight = argument(dweight), call.dbias = argument(dbias);
          run("norm_backward", &call);
          for (const Array* made : {&dx, &dweight, &dbias}) made->add_to(&back);

          const std::string name = std::string(c.name) + " " + dims(c.shape) + " " +
                                   kActivationNames[which] + " " + kLayoutNames[layout] + " " +
                                   kDTypeNames[dtype];
          print(name + " forward", ahead);
          print(name + " backward", back);
        }
}

// bias_act and batch_norm: of NCHW, of NHWC, and of rows.
void channels() {
  struct ChannelCase {
    std::vector<int64_t> shape;
    int axis;
  };
  const ChannelCase cases[] = {
      {{301, 67}, 1}, {{700, 3}, 1}, {{3, 5, 7, 9}, 1}, {{3, 7, 9, 21}, 3}};
  for (const ChannelCase& c : cases)
    for (const int which : {int(k_identity), int(k_mish)})
      for (const int layout : {int(kPlain), int(kBackward)})
        for (int dtype = 0; dtype < kDTypes; ++dtype) {
          const int64_t size = size_of(c.shape), n = c.shape[c.axis];
          const Bytes x_values = values(dtype, size, 31), dy_values = values(dtype, size, 32);
          const Bytes bias_values = values(dtype, n, 33), weights = values(dtype, n, 34);
          const Array x(c.shape, dtype, Layout(layout), &x_values);
          const Array dy(c.shape, dtype, Layout(layout), &dy_values);
          const Array bias({n}, dtype, kPlain, &bias_values);
          const Array weight({n}, dtype, kPlain, &weights);
          Array y(c.shape, dtype, kPlain), dx(c.shape, dtype, Layout(layout)),
              dbias({n}, dtype, kPlain);
          const std::string name = dims(c.shape) + " " + kActivationNames[which] + " " +
                                   kLayoutNames[layout] + " " + kDTypeNames[dtype];

          BiasCall call{};
          call.which = which, call.axis = c.axis;
          call.data[BiasCall::kX] = argument(x);
          call.data[BiasCall::kOut] = argument(y);
          call.bias = argument(bias), call.dbias = argument(dbias);
          run(kBiasForward.name, &call);
          call.data[BiasCall::kDy] = argument(dy);
          call.data[BiasCall::kOut] = argument(dx);
          run(kBiasBackward.name, &call);
          Hash of_bias;
          for (const Array* made : {&y, &dx, &dbias}) made->add_to(&of_bias);
          print("bias_act " + name, of_bias);

          Bytes spreads = values(kF64, n, 36);
          for (int64_t i = 0; i < n; ++i) {
            double spread;
            memcpy(&spread, spreads.data() + 8 * i, sizeof spread);
            spread = 1 + spread * spread;
            memcpy(spreads.data() + 8 * i, &spread, sizeof spread);
          }
          const Bytes means = values(kF64, n, 35);
          const Array mean({n}, kF64, kPlain, &means), rstd({n}, kF64, kPlain, &spreads);
          Array sum_p({n}, kF64, kPlain), sum_p_xhat({n}, kF64, kPlain);
          BatchForward ahead{};
          BatchBackward back{};
          ahead.x = back.x = argument(x);
          ahead.y = argument(y), back.dy = argument(dy), back.dx = argument(dx);
          ahead.weight = back.weight = argument(weight);
          ahead.bias = back.bias = argument(bias);
          ahead.mean = back.mean = argument(mean), ahead.spread = back.rstd = argument(rstd);
          back.dbias = argument(sum_p), back.dweight = argument(sum_p_xhat);
          ahead.axis = back.axis = c.axis, ahead.which = back.which = which;
          back.is_training = true;
          Hash of_batch;
          run("norm_apply", &ahead);
          run("batch_norm_backward", &back);
          for (const Array* made : {&y, &dx, &sum_p, &sum_p_xhat}) made->add_to(&of_batch);
          print("batch_norm " + name, of_batch);
        }
}

}  // namespace

int main() {
  table = best_supported_isa();
  activations();
  reductions();
  norms();
  channels();
}

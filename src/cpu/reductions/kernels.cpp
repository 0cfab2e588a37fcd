// The kernels of the reductions: reductions/kernels.h says what they compute, and
// docs/design/reductions.md how fast.
#include "cpu/reductions/kernels.h"

#include <type_traits>
#include <utility>

#include "cpu/core/kernel_table.h"
#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The terms of each reduction: f(value) in double, of a vector or of one; and sum + f(value) for
// terms of T. Squares of float and narrower are exact in double, so that a multiply-add is the sum.
struct Plain {
  template <class V>
  V operator()(V x) const {
    return x;
  }
  template <class T, class V>
  static FASTACT_HD V add(V x, V one, V sum) {
    return is_converted<T> ? add_converted(x, one, sum) : sum + x;
  }
};
struct Squared {
  template <class V>
  V operator()(V x) const {
    return x * x;
  }
  template <class T, class V>
  static FASTACT_HD V add(V x, V, V sum) {
    return is_converted<T> ? madd(x, x, sum) : sum + x * x;
  }
};

// The lanes of a block in registers.
template <class T, class F>
struct Lanes {
  using V = typename LanesOf<T>::type;
  static constexpr int kWidth = sizeof(V) / sizeof(double), kCount = kLanes / kWidth;
  V v[kCount];

  FASTACT_HD void clear() {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) v[k] = -V{};
  }
  FASTACT_HD void read(const double* lanes) {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) load_to(v[k], lanes + k * kWidth);
  }
  FASTACT_HD void write(double* lanes) const {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) store(v[k], lanes + k * kWidth);
  }

  // So many times kLanes terms, of which the next one lies before x: lane 0 is the last of `v`.
  FASTACT_HD void add_backward(const T* x, int64_t times) {
    const V one = V{} + hidden_one();
    x -= kLanes - 1;
    for (const T* const end = x - times * kLanes; x != end; x -= kLanes) {
#pragma GCC unroll 16
      for (int k = 0; k < kCount; ++k) {
        V terms;
        load_to(terms, x + k * kWidth);
        v[k] = F::template add<T>(terms, one, v[k]);
      }
    }
  }

  // n terms, from lane 0 on. The hardware prefetches them; software prefetches here are slower.
  FASTACT_HD void add(const T* x, int64_t n) {
    const V one = V{} + hidden_one();
    const T* const end = x + n / kLanes * kLanes;
    for (; x != end; x += kLanes) {
#pragma GCC unroll 16
      for (int k = 0; k < kCount; ++k) {
        V terms;
        load_to(terms, x + k * kWidth);
        v[k] = F::template add<T>(terms, one, v[k]);
      }
    }
    const int64_t rest = n % kLanes;
    if (rest == 0) return;
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) {
      const int64_t left = rest - k * kWidth;
      V terms;
      if (left >= kWidth)
        load_to(terms, x + k * kWidth);
      else if (left > 0)
        load_some_to(terms, x + k * kWidth, left, -V{});
      else
        break;
      v[k] = F::template add<T>(terms, one, v[k]);
    }
  }
};

// The first of n terms, up to lane 0, where lane `phase` is next: onto lanes in memory.
template <class T, class F>
FASTACT_HD int64_t add_head(const T* x, int64_t n, int64_t phase, double* memory) {
  using V = typename LanesOf<T>::type;
  constexpr int64_t kWidth = Lanes<T, F>::kWidth;
  const int64_t head = phase == 0 ? 0 : n < kLanes - phase ? n : kLanes - phase;
  const V one = V{} + hidden_one();
  int64_t i = 0;
  for (; i + kWidth <= head; i += kWidth) {
    V sum, terms;
    load_to(sum, memory + phase + i);
    load_to(terms, x + i);
    store(F::template add<T>(terms, one, sum), memory + phase + i);
  }
  for (; i < head; ++i) memory[phase + i] += F()(to_double(x[i]));
  return head;
}

template <class T, class F>
void add_terms(const char* from, int64_t n, int64_t phase, double* memory) {
  const T* x = reinterpret_cast<const T*>(from);
  const int64_t head = add_head<T, F>(x, n, phase, memory);
  if (head == n) return;
  Lanes<T, F> lanes;
  lanes.read(memory);
  lanes.add(x + head, n - head);
  lanes.write(memory);
}

template <class T, class F>
FASTACT_HD double sum_block(const T* x, int64_t n) {
  Lanes<T, F> lanes;
  lanes.clear();
  lanes.add(x, n);
  return fold_vectors(lanes.v);
}

template <class T, class F>
void sum_blocks(const char* x, const int64_t* offsets, int64_t count, int64_t n, double* sums) {
  for (int64_t i = 0; i < count; ++i)
    sums[i] = sum_block<T, F>(reinterpret_cast<const T*>(x + offsets[i]), n);
}

// Read from its end, as it lies in memory; the lanes are reversed once a block. (To gather the
// terms in the other direction first is slower.)
template <class T, class F>
FASTACT_HD double sum_block_backward(const T* x, int64_t n) {
  Lanes<T, F> lanes;
  lanes.clear();
  lanes.add_backward(x, n / kLanes);
  reverse_vectors(lanes.v);
  if (const int64_t rest = n % kLanes) {
    double memory[kLanes];
    lanes.write(memory);
    for (int64_t i = 0; i < rest; ++i) memory[i] += F()(to_double(x[rest - n - i]));
    lanes.read(memory);
  }
  return fold_vectors(lanes.v);
}

template <class T, class F>
void sum_blocks_backward(const char* x, const int64_t* offsets, int64_t count, int64_t n,
                         double* sums) {
  for (int64_t i = 0; i < count; ++i)
    sums[i] = sum_block_backward<T, F>(reinterpret_cast<const T*>(x + offsets[i]), n);
}

template <class T, class F>
void add_segment(const char* from, int64_t n, int64_t at, double* memory, double* sums,
                 int64_t stride) {
  const T* x = reinterpret_cast<const T*>(from);
  for (int64_t left; n > 0; x += left, n -= left) {
    left = n < kReduceBlock - at ? n : kReduceBlock - at;
    if (at == 0 && left == kReduceBlock) {
      *sums = sum_block<T, F>(x, left);
      sums += stride;
      continue;
    }
    const int64_t head = add_head<T, F>(x, left, at % kLanes, memory);
    at += left;
    if (head == left && at < kReduceBlock) return;
    Lanes<T, F> lanes;
    lanes.read(memory);
    lanes.add(x + head, left - head);
    if (at == kReduceBlock) {
      *sums = fold_vectors(lanes.v);
      sums += stride;
      at = 0;
      lanes.clear();
    }
    lanes.write(memory);
  }
}

void fold(double* lanes, int64_t count, int64_t columns) {
  count = count < kLanes ? count : kLanes;
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    if (count <= half) continue;
    const double* upper = lanes + half * columns;
    const int64_t n = (count - half) * columns;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) lanes[i] += upper[i];
    count = half;
  }
}

void fold_each(const double* lanes, int64_t step, int64_t count, double* sums) {
  for (int64_t i = 0; i < count; ++i, lanes += step) {
    Vector v[kVectors];
#pragma GCC unroll 16
    for (int k = 0; k < kVectors; ++k) v[k] = load(lanes + k * kVector);
    sums[i] = fold_vectors(v);
  }
}

// lane[c] = (lane[c] + x[0][c]) + x[1][c] ...: kRows rows at once, so that a lane is read and
// written once for all of them.
template <int kRows, bool fresh, class T, class F>
FASTACT_HD void add_some(const T* const* x, int64_t columns, double* lane, int64_t ahead, F f) {
  using V = typename LanesOf<T>::type;
  constexpr int64_t kPerCacheLine = kCacheLine / sizeof(T), kWidth = sizeof(V) / sizeof(double);
  const V one = V{} + hidden_one();
  const auto add_vector = [&](int64_t c) FASTACT_INLINED {
    V sum = -V{};
    if (!fresh) load_to(sum, lane + c);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      V terms;
      load_to(terms, x[i] + c);
      sum = F::template add<T>(terms, one, sum);
    }
    store(sum, lane + c);
  };
  int64_t c = 0;
  if (ahead) {
    for (; c + kPerCacheLine <= columns; c += kPerCacheLine) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) prefetch<1>(x[i] + c, ahead);
      for (int64_t k = 0; k < kPerCacheLine; k += kWidth) add_vector(c + k);
    }
  }
  for (; c + kWidth <= columns; c += kWidth) add_vector(c);
  for (; c < columns; ++c) {
    double sum = fresh ? -0.0 : lane[c];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) sum += f(to_double(x[i][c]));
    lane[c] = sum;
  }
}

template <class T, class F>
void add_rows(const char* x, const int64_t* offsets, int64_t step, int64_t rows, int64_t columns,
              double* lane, bool fresh) {
  const F f;
  const T* row[8];
  const auto add = [&](auto count) {
    constexpr int kRows = decltype(count)::value;
    for (; rows >= kRows; rows -= kRows, offsets += kRows * step, fresh = false) {
      for (int k = 0; k < kRows; ++k) row[k] = reinterpret_cast<const T*>(x + offsets[k * step]);
      const int64_t ahead = rows >= 2 * kRows ? offsets[kRows * step] - offsets[0] : 0;
      if (fresh)
        add_some<kRows, true>(row, columns, lane, ahead, f);
      else
        add_some<kRows, false>(row, columns, lane, ahead, f);
    }
  };
  add(std::integral_constant<int, 8>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 1>());
}

template <int n, class T, class F>
void sum_rows(const char* x, const int64_t* offsets, int64_t columns, double* sums) {
  const F f;
  const T* row[n];
  for (int i = 0; i < n; ++i) row[i] = reinterpret_cast<const T*>(x + offsets[i]);
  int64_t c = 0;
  for (; c + kVector <= columns; c += kVector) {
    Vector terms[n];
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      prefetch<1>(row[i] + c, kAhead);
      terms[i] = f(load(row[i] + c));
    }
    store(fold_terms(terms), sums + c);
  }
  for (; c < columns; ++c) {
    double terms[n];
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) terms[i] = f(to_double(row[i][c]));
    sums[c] = fold_terms(terms);
  }
}

template <int n, class F, size_t... k>
FASTACT_HD Vector sum_every_row(const Vector (&rows)[n], F f, std::index_sequence<k...>) {
  Vector terms[n] = {f(every_nth<n, k>(rows))...};
  return fold_terms(terms);
}

// By whole vectors and shuffles, which is faster than what GCC 12 makes of a loop over the rows.
template <int n, class T, class F>
void sum_short(const char* from, const int64_t*, int64_t count, double* sums) {
  const T* x = reinterpret_cast<const T*>(from);
  const F f;
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector, x += n * kVector) {
    Vector rows[n];
#pragma GCC unroll 8
    for (int m = 0; m < n; ++m) rows[m] = load(x + m * kVector);
    prefetch<n * kVector>(x, kAhead);
    store(sum_every_row(rows, f, std::make_index_sequence<n>()), sums + i);
  }
  for (; i < count; ++i, x += n) {
    double terms[n];
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) terms[k] = f(to_double(x[k]));
    sums[i] = fold_terms(terms);
  }
}

template <class T, class F>
void spread(const char* x, int64_t stride, int64_t n, double* lane) {
  const F f;
  for (int64_t i = 0; i < n; ++i)
    lane[i] = f(to_double(*reinterpret_cast<const T*>(x + i * stride)));
}

// Knuth's two-sum. Where it meets an infinity the error is dropped, and hi is what a plain sum is.
template <bool has_errors>
FASTACT_HD void merge_some(const double* sums, const double* errors, double* hi, double* lo,
                           int64_t n) {
  constexpr double kLargest = 0x1.fffffffffffffp1023;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double a = hi[i], b = sums[i], s = a + b;
    const double b_part = s - a;
    const double error = (a - (s - b_part)) + (b - b_part);
    hi[i] = s;
    lo[i] += (__builtin_fabs(error) <= kLargest ? error : 0.0) + (has_errors ? errors[i] : 0.0);
  }
}
void merge(const double* sums, const double* errors, double* hi, double* lo, int64_t n) {
  errors ? merge_some<true>(sums, errors, hi, lo, n) : merge_some<false>(sums, errors, hi, lo, n);
}

template <class T>
void finish(const double* hi, const double* lo, char* to, int64_t n) {
  T* y = reinterpret_cast<T*>(to);
  if (lo) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = narrow_once<T>(lo[i] == 0 ? hi[i] : hi[i] + lo[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = narrow_once<T>(hi[i]);
  }
}

}  // namespace

#define FASTACT_FEW(f, T, F) \
  {f<1, T, F>, f<2, T, F>, f<3, T, F>, f<4, T, F>, f<5, T, F>, f<6, T, F>, f<7, T, F>, f<8, T, F>}
#define FASTACT_REDUCE(T, F)     \
  {sum_blocks<T, F>,             \
   sum_blocks_backward<T, F>,    \
   add_terms<T, F>,              \
   add_segment<T, F>,            \
   add_rows<T, F>,               \
   FASTACT_FEW(sum_rows, T, F),  \
   FASTACT_FEW(sum_short, T, F), \
   spread<T, F>}
#define FASTACT_REDUCES(F)                                                    \
  {FASTACT_REDUCE(f16, F), FASTACT_REDUCE(bf16, F), FASTACT_REDUCE(float, F), \
   FASTACT_REDUCE(double, F)}

extern const ReduceTable reduce_table;
const ReduceTable reduce_table = {
    {FASTACT_REDUCES(Plain), FASTACT_REDUCES(Squared)},         fold, fold_each, merge,
    {finish<f16>, finish<bf16>, finish<float>, finish<double>},
};

FASTACT_END_NAMESPACE

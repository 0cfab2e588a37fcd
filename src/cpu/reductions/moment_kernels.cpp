// The kernels of reductions/moment_kernels.h: the accumulators in vector registers first, then the
// loops over each layout.
#include "cpu/reductions/moment_kernels.h"

#include <type_traits>
#include <utility>

#include "cpu/simd/accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Sums of d = x - shift and of d^2. Of converted terms d is a multiply-add, in the pipes that
// conversion and addition leave idle (simd/accumulators.h): with 1, in a vector, and -shift.
template <class T, class V>
struct Deviations {
  V one, minus;

  FASTACT_HD explicit Deviations(double shift) : one(V{} + hidden_one()), minus(V{} - shift) {}
  FASTACT_HD Deviations(double hidden, V shift) : one(V{} + hidden), minus(-shift) {}

  FASTACT_HD void add(V x, V& sum, V& square) const {
    const V d = is_converted<T> ? add_converted(x, one, minus) : x + minus;
    sum += d;
    square = madd(d, d, square);
  }
};
FASTACT_HD void add_deviation(double d, double& sum, double& square) {
  sum += d;
  square = madd(d, d, square);
}

// The lanes of a block in registers.
template <class T>
struct MomentLanes {
  using V = typename LanesOf<T>::type;
  static constexpr int kWidth = sizeof(V) / sizeof(double), kCount = kLanes / kWidth;
  // Vectors at a time: with their squares they fill half of the registers.
  static constexpr int kGroup = kVector == 8 ? kCount : 4;
  V sums[kCount], squares[kCount];

  FASTACT_HD void clear() {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) sums[k] = squares[k] = V{};
  }
  FASTACT_HD void read(const double* all_sums, const double* all_squares) {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) {
      load_to(sums[k], all_sums + k * kWidth);
      load_to(squares[k], all_squares + k * kWidth);
    }
  }
  FASTACT_HD void write(double* all_sums, double* all_squares) const {
#pragma GCC unroll 16
    for (int k = 0; k < kCount; ++k) {
      store(sums[k], all_sums + k * kWidth);
      store(squares[k], all_squares + k * kWidth);
    }
  }

  // So many times kLanes terms, of which the next one lies before x: lane 0 is the last.
  FASTACT_HD void add_backward(const T* x, int64_t times, double shift) {
    const Deviations<T, V> d(shift);
    const T* const first = x - (kLanes - 1);
#pragma GCC unroll 4
    for (int group = 0; group < kCount; group += kGroup) {
      V sum[kGroup], square[kGroup];
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sum[k] = sums[group + k], square[k] = squares[group + k];
      for (const T* at = first; at != first - times * kLanes; at -= kLanes) {
#pragma GCC unroll 8
        for (int k = 0; k < kGroup; ++k) {
          V terms;
          load_to(terms, at + (group + k) * kWidth);
          d.add(terms, sum[k], square[k]);
        }
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sums[group + k] = sum[k], squares[group + k] = square[k];
    }
  }

  // n terms, from lane 0 on; the hardware prefetches them, as those of a sum.
  FASTACT_HD void add(const T* x, int64_t n, double shift) {
    const Deviations<T, V> d(shift);
    const int64_t whole = n / kLanes * kLanes, rest = n % kLanes;
#pragma GCC unroll 4
    for (int group = 0; group < kCount; group += kGroup) {
      V sum[kGroup], square[kGroup];
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sum[k] = sums[group + k], square[k] = squares[group + k];
      for (const T* at = x; at != x + whole; at += kLanes) {
#pragma GCC unroll 8
        for (int k = 0; k < kGroup; ++k) {
          V terms;
          load_to(terms, at + (group + k) * kWidth);
          d.add(terms, sum[k], square[k]);
        }
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) {
        const int64_t left = rest - (group + k) * kWidth;
        const T* at = x + whole + (group + k) * kWidth;
        V terms;
        if (left >= kWidth)
          load_to(terms, at);
        else if (left > 0)
          load_some_to(terms, at, left, V{} + shift);
        else
          break;
        d.add(terms, sum[k], square[k]);
      }
#pragma GCC unroll 8
      for (int k = 0; k < kGroup; ++k) sums[group + k] = sum[k], squares[group + k] = square[k];
    }
  }

  FASTACT_HD void settle(double shift, int64_t n, double* mean, double* m2) {
    const double sum = fold_vectors(sums), square = fold_vectors(squares);
    moments_of_sums(shift, sum, square, double(n), mean, m2);
  }
};

// The first of n terms, up to lane 0, where lane `phase` is next: onto lanes in memory.
template <class T>
FASTACT_HD int64_t add_head(const T* x, int64_t n, int64_t phase, double shift, double* sums,
                            double* squares) {
  using V = typename LanesOf<T>::type;
  constexpr int64_t kWidth = MomentLanes<T>::kWidth;
  const int64_t head = phase == 0 ? 0 : n < kLanes - phase ? n : kLanes - phase;
  const Deviations<T, V> d(shift);
  int64_t i = 0;
  for (; i + kWidth <= head; i += kWidth) {
    V terms, sum, square;
    load_to(terms, x + i);
    load_to(sum, sums + phase + i);
    load_to(square, squares + phase + i);
    d.add(terms, sum, square);
    store(sum, sums + phase + i);
    store(square, squares + phase + i);
  }
  for (; i < head; ++i) add_deviation(to_double(x[i]) - shift, sums[phase + i], squares[phase + i]);
  return head;
}

template <class T>
constexpr int kPasses = sizeof(T) == sizeof(double) ? 2 : 1;

template <class T>
FASTACT_HD void block_moments(const T* x, int64_t n, double* mean, double* m2) {
  double shift = finite_or_zero(to_double(*x));
#pragma GCC unroll 2
  for (int pass = 0; pass < kPasses<T>; ++pass) {
    MomentLanes<T> lanes;
    lanes.clear();
    lanes.add(x, n, shift);
    lanes.settle(shift, n, mean, m2);
    shift = finite_or_zero(*mean);
  }
}

template <class T>
void along(const char* x, const int64_t* offsets, int64_t count, int64_t n, double* mean,
           double* m2) {
  for (int64_t i = 0; i < count; ++i)
    block_moments(reinterpret_cast<const T*>(x + offsets[i]), n, mean + i, m2 + i);
}

// As sum_block_backward of reductions/kernels.cpp.
template <class T>
FASTACT_HD void block_backward(const T* x, int64_t n, double* mean, double* m2) {
  double shift = finite_or_zero(to_double(*x));
#pragma GCC unroll 2
  for (int pass = 0; pass < kPasses<T>; ++pass) {
    MomentLanes<T> lanes;
    lanes.clear();
    lanes.add_backward(x, n / kLanes, shift);
    reverse_vectors(lanes.sums);
    reverse_vectors(lanes.squares);
    if (const int64_t rest = n % kLanes) {
      double memory[2][kLanes];
      lanes.write(memory[0], memory[1]);
      for (int64_t i = 0; i < rest; ++i)
        add_deviation(to_double(x[rest - n - i]) - shift, memory[0][i], memory[1][i]);
      lanes.read(memory[0], memory[1]);
    }
    lanes.settle(shift, n, mean, m2);
    shift = finite_or_zero(*mean);
  }
}

template <class T>
void along_backward(const char* x, const int64_t* offsets, int64_t count, int64_t n, double* mean,
                    double* m2) {
  for (int64_t i = 0; i < count; ++i)
    block_backward(reinterpret_cast<const T*>(x + offsets[i]), n, mean + i, m2 + i);
}

FASTACT_HD void merge_counts(const Moments& from, int64_t k, Moments* to, int64_t n) {
  const double fraction = double(k) / double(n + k);
  merge_moments(from, fraction, double(n) * fraction, to);
}

template <class T>
void row(const char* from, int64_t n, double* mean, double* m2) {
  const T* x = reinterpret_cast<const T*>(from);
  if (n <= kReduceBlock) {
    block_moments(x, n, mean, m2);
    return;
  }
  const int64_t chunk_terms = blocks_a_chunk(n) * kReduceBlock;
  Moments all{};
  for (int64_t begin = 0; begin < n; begin += chunk_terms) {
    const int64_t end = n - begin < chunk_terms ? n : begin + chunk_terms;
    Moments chunk{};
    for (int64_t term = begin; term < end; term += kReduceBlock) {
      const int64_t m = end - term < kReduceBlock ? end - term : kReduceBlock;
      Moments one{};
      block_moments(x + term, m, &one.mean, &one.m2);
      if (term > begin)
        merge_counts(one, m, &chunk, term - begin);
      else
        chunk = one;
    }
    if (begin > 0)
      merge_counts(chunk, end - begin, &all, begin);
    else
      all = chunk;
  }
  *mean = all.mean + all.mean_low;
  *m2 = all.m2 + all.m2_low;
}

template <class T>
void add_terms(const char* from, int64_t n, int64_t phase, double shift, double* sums,
               double* squares) {
  const T* x = reinterpret_cast<const T*>(from);
  const int64_t head = add_head(x, n, phase, shift, sums, squares);
  if (head == n) return;
  MomentLanes<T> lanes;
  lanes.read(sums, squares);
  lanes.add(x + head, n - head, shift);
  lanes.write(sums, squares);
}

template <class T>
void add_segment(const char* from, int64_t n, int64_t at, UnfinishedBlock* open, double* mean,
                 double* m2, int64_t stride) {
  const T* x = reinterpret_cast<const T*>(from);
  for (int64_t m; n > 0; x += m, n -= m) {
    m = n < kReduceBlock - at ? n : kReduceBlock - at;
    if (m == kReduceBlock) {
      block_moments(x, m, mean, m2);
      mean += stride, m2 += stride;
      continue;
    }
    if (at == 0) open->shift = finite_or_zero(to_double(*x));
    const int64_t head = add_head(x, m, at % kLanes, open->shift, open->sums, open->squares);
    at += m;
    if (head == m && at < kReduceBlock) return;
    MomentLanes<T> lanes;
    lanes.read(open->sums, open->squares);
    lanes.add(x + head, m - head, open->shift);
    if (at == kReduceBlock) {
      lanes.settle(open->shift, at, mean, m2);
      mean += stride, m2 += stride;
      at = 0;
      lanes.clear();
    }
    lanes.write(open->sums, open->squares);
  }
}

// kRows rows at once, so that a lane is read and written once for all of them.
template <int kRows, bool fresh, class T>
FASTACT_HD void add_some(const T* const* x, int64_t columns, const double* shift, double* sums,
                         double* squares, int64_t ahead) {
  using V = typename LanesOf<T>::type;
  constexpr int64_t kPerCacheLine = kCacheLine / sizeof(T), kWidth = sizeof(V) / sizeof(double);
  const double one = hidden_one();
  const auto add_vector = [&](int64_t c) FASTACT_INLINED {
    V sum = {}, square = {}, from;
    if (!fresh) {
      load_to(sum, sums + c);
      load_to(square, squares + c);
    }
    load_to(from, shift + c);
    const Deviations<T, V> d(one, from);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      V terms;
      load_to(terms, x[i] + c);
      d.add(terms, sum, square);
    }
    store(sum, sums + c);
    store(square, squares + c);
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
    double sum = fresh ? 0.0 : sums[c], square = fresh ? 0.0 : squares[c];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) add_deviation(to_double(x[i][c]) - shift[c], sum, square);
    sums[c] = sum;
    squares[c] = square;
  }
}

template <class T>
void add_rows(const char* x, const int64_t* offsets, int64_t step, int64_t rows, int64_t columns,
              const double* shift, double* sums, double* squares, bool fresh) {
  const T* row[8];
  const auto add = [&](auto count) {
    constexpr int kRows = decltype(count)::value;
    for (; rows >= kRows; rows -= kRows, offsets += kRows * step, fresh = false) {
      for (int k = 0; k < kRows; ++k) row[k] = reinterpret_cast<const T*>(x + offsets[k * step]);
      const int64_t ahead = rows >= 2 * kRows ? offsets[kRows * step] - offsets[0] : 0;
      if (fresh)
        add_some<kRows, true>(row, columns, shift, sums, squares, ahead);
      else
        add_some<kRows, false>(row, columns, shift, sums, squares, ahead);
    }
  };
  add(std::integral_constant<int, 8>());
  add(std::integral_constant<int, 2>());
  add(std::integral_constant<int, 1>());
}

// The sums over n terms, each in a lane of its own; of vectors or of numbers.
template <int n, class V>
FASTACT_HD void add_few(const V (&x)[n], V shift, V* sum, V* square) {
  V sums[n], squares[n];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    sums[i] = x[i] - shift;
    squares[i] = sums[i] * sums[i];
  }
  *sum = fold_terms(sums);
  *square = fold_terms(squares);
}

template <int n, class T>
void few_rows(const char* x, const int64_t* offsets, int64_t columns, const double* shift,
              double* sums, double* squares) {
  const T* row[n];
  for (int i = 0; i < n; ++i) row[i] = reinterpret_cast<const T*>(x + offsets[i]);
  int64_t c = 0;
  for (; c + kVector <= columns; c += kVector) {
    Vector terms[n], sum, square;
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      prefetch<1>(row[i] + c, kAhead);
      terms[i] = load(row[i] + c);
    }
    add_few(terms, load(shift + c), &sum, &square);
    store(sum, sums + c);
    store(square, squares + c);
  }
  for (; c < columns; ++c) {
    double terms[n];
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) terms[i] = to_double(row[i][c]);
    add_few(terms, shift[c], sums + c, squares + c);
  }
}

template <int n, size_t... k>
FASTACT_HD void add_every_row(const Vector (&rows)[n], Vector shift, Vector* sum, Vector* square,
                              std::index_sequence<k...>) {
  const Vector terms[n] = {every_nth<n, k>(rows)...};
  add_few(terms, shift, sum, square);
}

template <int n, class T>
void short_rows(const char* from, const int64_t*, int64_t count, const double* shift, double* sums,
                double* squares) {
  const T* x = reinterpret_cast<const T*>(from);
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector, x += n * kVector) {
    Vector rows[n], sum, square;
#pragma GCC unroll 8
    for (int m = 0; m < n; ++m) rows[m] = load(x + m * kVector);
    prefetch<n * kVector>(x, kAhead);
    add_every_row(rows, load(shift + i), &sum, &square, std::make_index_sequence<n>());
    store(sum, sums + i);
    store(square, squares + i);
  }
  for (; i < count; ++i, x += n) {
    double terms[n];
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) terms[k] = to_double(x[k]);
    add_few(terms, shift[i], sums + i, squares + i);
  }
}

void settle(const double* shift, const double* sums, const double* squares, int64_t n,
            int64_t columns, double* mean, double* m2) {
  const double count = double(n);
#pragma omp simd
  for (int64_t i = 0; i < columns; ++i)
    moments_of_sums(shift[i], sums[i], squares[i], count, mean + i, m2 + i);
}

void deviate(const double* shift, int64_t rows, int64_t columns, double* sums, double* squares) {
  for (; rows > 0; --rows, sums += columns, squares += columns) {
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      sums[i] -= shift[i];
      squares[i] = sums[i] * sums[i];
    }
  }
}

template <class T>
void lose_of(const double* mean, double* low, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const double rounded = to_double(narrow_once<T>(mean[i] + low[i]));
    low[i] = finite_or_zero((mean[i] - rounded) + low[i]);
  }
}
void lose(int dtype, const double* mean, double* low, int64_t n) {
  constexpr decltype(&lose_of<float>) of[kDTypes] = {lose_of<f16>, lose_of<bf16>, lose_of<float>,
                                                     lose_of<double>};
  of[dtype](mean, low, n);
}

void make_finite(double* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = finite_or_zero(x[i]);
}

template <bool has_low>
FASTACT_HD void merge_some(const MomentArrays& from, const MomentArrays& to, double fraction,
                           double weight, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Moments one = {from.mean[i], from.m2[i], has_low ? from.mean_low[i] : 0.0,
                         has_low ? from.m2_low[i] : 0.0};
    Moments all = {to.mean[i], to.m2[i], to.mean_low[i], to.m2_low[i]};
    merge_moments(one, fraction, weight, &all);
    to.mean[i] = all.mean, to.mean_low[i] = all.mean_low;
    to.m2[i] = all.m2, to.m2_low[i] = all.m2_low;
  }
}
void merge(const MomentArrays& from, int64_t k, const MomentArrays& to, int64_t count, int64_t n) {
  const double fraction = double(k) / double(count + k), weight = double(count) * fraction;
  from.mean_low ? merge_some<true>(from, to, fraction, weight, n)
                : merge_some<false>(from, to, fraction, weight, n);
}

}  // namespace

#define FASTACT_FEW(f, T) {f<1, T>, f<2, T>, f<3, T>, f<4, T>, f<5, T>, f<6, T>, f<7, T>, f<8, T>}
#define FASTACT_MOMENTS(T)                                              \
  {row<T>,         along<T>,    along_backward<T>,        add_terms<T>, \
   add_segment<T>, add_rows<T>, FASTACT_FEW(few_rows, T), FASTACT_FEW(short_rows, T)}

extern const MomentTable moment_table;
const MomentTable moment_table = {
    {FASTACT_MOMENTS(f16), FASTACT_MOMENTS(bf16), FASTACT_MOMENTS(float), FASTACT_MOMENTS(double)},
    settle,
    deviate,
    lose,
    make_finite,
    merge,
};

FASTACT_END_NAMESPACE

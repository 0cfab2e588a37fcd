// The serial loops of reductions/moment_kernels.h.
#include "cpu/reductions/moment_kernels.h"

#include <type_traits>
#include <utility>

#include "cpu/reductions/moment_accumulators.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
constexpr int kPasses = sizeof(T) == sizeof(double) ? 2 : 1;

template <class T>
FASTACT_HD void block(const T* x, int64_t n, double* mean, double* m2) {
  double shift = finite_or_zero(wide(*x));
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
    block(reinterpret_cast<const T*>(x + offsets[i]), n, mean + i, m2 + i);
}

// As sum_block_backward of reductions/kernels.cpp.
template <class T>
FASTACT_HD void block_backward(const T* x, int64_t n, double* mean, double* m2) {
  double shift = finite_or_zero(wide(*x));
#pragma GCC unroll 2
  for (int pass = 0; pass < kPasses<T>; ++pass) {
    MomentLanes<T> lanes;
    lanes.clear();
    lanes.add_backward(x, n / kLanes, shift);
    turn(lanes.sums);
    turn(lanes.squares);
    if (const int64_t rest = n % kLanes) {
      double memory[2][kLanes];
      lanes.write(memory[0], memory[1]);
      for (int64_t i = 0; i < rest; ++i)
        add_deviation(wide(x[rest - n - i]) - shift, memory[0][i], memory[1][i]);
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
  const double share = double(k) / double(n + k);
  merge_moments(from, share, double(n) * share, to);
}

template <class T>
void row(const char* from, int64_t n, double* mean, double* m2) {
  const T* x = reinterpret_cast<const T*>(from);
  if (n <= kReduceBlock) {
    block(x, n, mean, m2);
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
      block(x + term, m, &one.mean, &one.m2);
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
void add_line(const char* from, int64_t n, int64_t at, MomentLine* line, double* mean, double* m2,
              int64_t stride) {
  const T* x = reinterpret_cast<const T*>(from);
  for (int64_t m; n > 0; x += m, n -= m) {
    m = n < kReduceBlock - at ? n : kReduceBlock - at;
    if (m == kReduceBlock) {
      block(x, m, mean, m2);
      mean += stride, m2 += stride;
      continue;
    }
    if (at == 0) line->shift = finite_or_zero(wide(*x));
    const int64_t head = add_head(x, m, at % kLanes, line->shift, line->sums, line->squares);
    at += m;
    if (head == m && at < kReduceBlock) return;
    MomentLanes<T> lanes;
    lanes.read(line->sums, line->squares);
    lanes.add(x + head, m - head, line->shift);
    if (at == kReduceBlock) {
      lanes.settle(line->shift, at, mean, m2);
      mean += stride, m2 += stride;
      at = 0;
      lanes.clear();
    }
    lanes.write(line->sums, line->squares);
  }
}

// kRows rows at once, so that a lane is read and written once for all of them.
template <int kRows, bool fresh, class T>
FASTACT_HD void add_some(const T* const* x, int64_t columns, const double* shift, double* sums,
                         double* squares, int64_t ahead) {
  using V = typename LanesOf<T>::type;
  constexpr int64_t kLineOf = kLine / sizeof(T), kWidth = sizeof(V) / sizeof(double);
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
    for (; c + kLineOf <= columns; c += kLineOf) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) prefetch<1>(x[i] + c, ahead);
      for (int64_t k = 0; k < kLineOf; k += kWidth) add_vector(c + k);
    }
  }
  for (; c + kWidth <= columns; c += kWidth) add_vector(c);
  for (; c < columns; ++c) {
    double sum = fresh ? 0.0 : sums[c], square = fresh ? 0.0 : squares[c];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) add_deviation(wide(x[i][c]) - shift[c], sum, square);
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
    for (int i = 0; i < n; ++i) terms[i] = wide(row[i][c]);
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
    for (int k = 0; k < n; ++k) terms[k] = wide(x[k]);
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
    const double rounded = wide(narrow_once<T>(mean[i] + low[i]));
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
FASTACT_HD void merge_some(const MomentArrays& from, const MomentArrays& to, double share,
                           double weight, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Moments one = {from.mean[i], from.m2[i], has_low ? from.mean_low[i] : 0.0,
                         has_low ? from.m2_low[i] : 0.0};
    Moments all = {to.mean[i], to.m2[i], to.mean_low[i], to.m2_low[i]};
    merge_moments(one, share, weight, &all);
    to.mean[i] = all.mean, to.mean_low[i] = all.mean_low;
    to.m2[i] = all.m2, to.m2_low[i] = all.m2_low;
  }
}
void merge(const MomentArrays& from, int64_t k, const MomentArrays& to, int64_t count, int64_t n) {
  const double share = double(k) / double(count + k), weight = double(count) * share;
  from.mean_low ? merge_some<true>(from, to, share, weight, n)
                : merge_some<false>(from, to, share, weight, n);
}

}  // namespace

#define FASTACT_FEW(f, T) {f<1, T>, f<2, T>, f<3, T>, f<4, T>, f<5, T>, f<6, T>, f<7, T>, f<8, T>}
#define FASTACT_MOMENTS(T)                                           \
  {row<T>,      along<T>,    along_backward<T>,        add_terms<T>, \
   add_line<T>, add_rows<T>, FASTACT_FEW(few_rows, T), FASTACT_FEW(short_rows, T)}

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

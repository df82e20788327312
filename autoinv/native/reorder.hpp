// Permutes the columns of one row-major matrix while it is copied to the result, row-major or column-major.
#pragma once

#include "batch.hpp"
#include "mask.hpp"
#include "simd.hpp"
#include "transpose.hpp"

namespace autoinv {
namespace AUTOINV_SET {

#if defined(__AVX512F__)

AUTOINV_INLINE Vector<double> pick(Vector<double> low, Vector<double> high, Integers<double> from) {
  return _mm512_permutex2var_pd(low, (__m512i)from, high);
}
AUTOINV_INLINE Vector<float> pick(Vector<float> low, Vector<float> high, Integers<float> from) {
  return _mm512_permutex2var_ps(low, (__m512i)from, high);
}
AUTOINV_INLINE void store_some(double* to, Vector<double> value, int count) {
  _mm512_mask_storeu_pd(to, __mmask8((1u << count) - 1), value);
}
AUTOINV_INLINE void store_some(float* to, Vector<float> value, int count) {
  _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), value);
}

AUTOINV_INLINE Vector<double> load_some(const double* from, int count) {
  return _mm512_maskz_loadu_pd(__mmask8((1u << count) - 1), from);
}
AUTOINV_INLINE Vector<float> load_some(const float* from, int count) {
  return _mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from);
}

// A row is held in its first L columns and its last L, so that nothing beyond it is touched.
template <class T, int N>
AUTOINV_INLINE void reorder_columns(const T* from, const Integer<T>* source, T* to) {
  constexpr int L = Simd<T>::lanes;
  static_assert(N <= 2 * L, "a row must fit two vectors");
  alignas(64) Integer<T> index[2 * L] = {};
  for (int c = 0; c < N; ++c) {
    const Integer<T> s = source[c * L];
    index[c] = s < L ? s : s + 2 * L - N;
  }
  const auto first = *(const Integers<T>*)index, second = *(const Integers<T>*)(index + L);
  for (int r = 0; r < N; ++r, from += N, to += N) {
    if constexpr (N < L) {
      const Vector<T> row = load_some(from, N);
      store_some(to, pick(row, row, first), N);
    } else {
      const Vector<T> low = load(from), high = load(from + N - L);
      store(to, pick(low, high, first));
      if constexpr (N > L) store_some(to + L, pick(low, high, second), N - L);
    }
  }
}

// The same for rows of any width: column k of `from` goes to column order[k].
template <class T>
AUTOINV_INLINE void write_columns(const T* from, int ld, const int* order, int n, T* to) {
  constexpr int L = Simd<T>::lanes, kPairs = (64 / L + 1) / 2;
  const int vectors = (n + L - 1) / L, pairs = (vectors + 1) / 2;
  alignas(64) Integer<T> index[2 * L * kPairs] = {};
  for (int k = 0; k < n; ++k) index[order[k]] = k;
  for (int v = 0; v < vectors; ++v) {
    const auto source = *(const Integers<T>*)(index + v * L);
    const int columns = n - v * L < L ? n - v * L : L;
    Mask<T> in_pair[kPairs];
    for (int p = 1; p < pairs; ++p) in_pair[p] = equal<T>(source / (2 * L), Integers<T>{} + p);
    for (int r = 0; r < n; ++r) {
      const Vector<T>* row = (const Vector<T>*)(from + r * ld);
      Vector<T> chosen = pick(row[0], row[vectors > 1], source);
      for (int p = 1; p < pairs; ++p) {
        const Vector<T> other = pick(row[2 * p], row[2 * p + (2 * p + 1 < vectors)], source);
        chosen = select<T>(in_pair[p], other, chosen);
      }
      if (columns == L) store(to + r * n + v * L, chosen);
      else store_some(to + r * n + v * L, chosen, columns);
    }
  }
}

#else

template <class T>
AUTOINV_INLINE void store_some(T* to, Vector<T> value, int count) {
  for (int i = 0; i < count; ++i) to[i] = value[i];
}

template <class T>
AUTOINV_INLINE void write_columns(const T* from, int ld, const int* order, int n, T* to) {
  for (int r = 0; r < n; ++r) {
    for (int k = 0; k < n; ++k) to[r * n + order[k]] = from[r * ld + k];
  }
}

template <class T, int N>
AUTOINV_INLINE void reorder_columns(const T* from, const Integer<T>* source, T* to) {
  for (int r = 0; r < N; ++r) {
    for (int c = 0; c < N; ++c) to[r * N + c] = from[r * N + source[c * Simd<T>::lanes]];
  }
}

#endif

// The transpose of what reorder_columns writes, from the transpose of what it reads.
template <class T, int N>
AUTOINV_INLINE void reorder_rows(const T* from, const Integer<T>* source, T* to) {
  constexpr int L = Simd<T>::lanes;
  for (int r = 0; r < N; ++r) {
    const T* row = from + source[r * L] * N;
    if constexpr (N < L) __builtin_memcpy(to + r * N, row, N * sizeof(T));
    else copy_row(row, to + r * N, N);
  }
}

// The transpose of what write_columns writes: column k of `from` becomes row order[k]. Reads squares of
// L x L, so that rows beyond n are read too and may hold anything.
template <class T>
AUTOINV_INLINE void write_columns_as_rows(const T* from, int ld, const int* order, int n, T* to) {
  constexpr int L = Simd<T>::lanes;
  for (int k = 0; k < n; k += L) {
    const int rows = n - k < L ? n - k : L;
    for (int c = 0; c < n; c += L) {
      Vector<T> square[L];
      unroll<0, L>([&](auto i) AUTOINV_LAMBDA { square[i.value] = load(from + (c + i.value) * ld + k); });
      transpose<T, L>(square);
      const int columns = n - c < L ? n - c : L;
      for (int i = 0; i < rows; ++i) {
        T* target = to + order[k + i] * n + c;
        if (columns == L) store(target, square[i]);
        else store_some(target, square[i], columns);
      }
    }
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

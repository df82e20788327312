// Puts the columns of one row-major matrix in order on its way to the result.
#pragma once

#include "simd.hpp"

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

#else

template <class T, int N>
AUTOINV_INLINE void reorder_columns(const T* from, const Integer<T>* source, T* to) {
  for (int r = 0; r < N; ++r) {
    for (int c = 0; c < N; ++c) to[r * N + c] = from[r * N + source[c * Simd<T>::lanes]];
  }
}

#endif

}  // namespace AUTOINV_SET
}  // namespace autoinv

// One matrix at a time, SIMD along its rows: LU with partial pivoting, then L^-1 and U^-1 on the
// identity, whose columns are put in their final order on the way out. For n beyond the reach of
// the lane kernels, and for batches too small to fill their lanes.
// Source: Golub and Van Loan, Matrix Computations, 4th ed., algorithm 3.4.1 and section 3.1.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"
#include "walk.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T>
struct Rows {
  static constexpr int L = Simd<T>::lanes;
  static constexpr int kMaxLd = (kMaxN + L - 1) / L * L;
  using V = Vector<T>;

  int n;
  int ld;                // elements a row, a multiple of the lanes
  int order[kMaxN];      // order[k]: the original row that became pivot k
  T reciprocal[kMaxN];   // of the pivots
  alignas(64) T a[kMaxN * kMaxLd];  // A, then L and U, rows in their original places
  alignas(64) T x[kMaxN * kMaxLd];  // L^-1, then A^-1 with columns in pivot order

  AUTOINV_INLINE T* row(int k) { return a + order[k] * ld; }

  // The largest magnitude in A: what a pivot is compared with.
  AUTOINV_INLINE T largest() {
    V best = {};
    for (int i = 0; i < n * ld; i += L) {
      const V m = magnitude<T>(load(a + i));
      best = m > best ? m : best;
    }
    T result = 0;
    for (int l = 0; l < L; ++l) result = best[l] > result ? best[l] : result;
    return result;
  }

  AUTOINV_INLINE int find_pivot(int k) {
    int pivot = k;
    T best = __builtin_fabs(row(k)[k]);
    for (int r = k + 1; r < n; ++r) {
      const T candidate = __builtin_fabs(row(r)[k]);
      pivot = candidate > best ? r : pivot;
      best = candidate > best ? candidate : best;
    }
    return pivot;
  }

  // Subtracts multiples of pivot row k from the rows below it.
  AUTOINV_INLINE void eliminate(int k) {
    alignas(64) T pivot_row[kMaxLd];
    const int first = (k + 1) / L * L;
    const T* source = row(k);
    for (int c = first; c < ld; c += L) *(V*)(pivot_row + c) = *(const V*)(source + c);
    for (int c = first; c <= k; ++c) pivot_row[c] = 0;
    for (int r = k + 1; r < n; ++r) {
      T* target = row(r);
      const T multiplier = target[k] * reciprocal[k];
      for (int c = first; c < ld; c += L) {
        *(V*)(target + c) -= multiplier * *(const V*)(pivot_row + c);
      }
      target[k] = multiplier;
    }
  }

  // False when a pivot is not clearly above rounding.
  inline bool factor() {
    const T floor = 8 * n * Simd<T>::epsilon * largest();
    for (int k = 0; k < n; ++k) order[k] = k;
    for (int k = 0; k < n; ++k) {
      const int p = find_pivot(k);
      const int swapped = order[k];
      order[k] = order[p];
      order[p] = swapped;
      const T pivot = row(k)[k];
      const T size = __builtin_fabs(pivot);
      if (!(size > floor && size > Simd<T>::smallest_pivot && size < Simd<T>::largest_pivot)) return false;
      reciprocal[k] = 1 / pivot;
      eliminate(k);
    }
    return true;
  }

  // x = L^-1: unit lower triangular, row by row.
  inline void invert_lower() {
    for (int i = 0; i < n * ld; i += L) *(V*)(x + i) = V{};
    for (int r = 0; r < n; ++r) {
      const T* multipliers = row(r);
      T* target = x + r * ld;
      for (int c = 0; c < r; c += L) {
        V sum = {};
        for (int k = c; k < r; ++k) sum -= multipliers[k] * *(const V*)(x + k * ld + c);
        *(V*)(target + c) = sum;
      }
      target[r] = 1;
    }
  }

  // x = U^-1 x, from the last row up.
  inline void solve_upper() {
    for (int r = n - 1; r >= 0; --r) {
      const T* u = row(r);
      T* target = x + r * ld;
      for (int c = 0; c < ld; c += L) {
        V sum = *(const V*)(target + c);
        for (int k = r + 1; k < n; ++k) sum -= u[k] * *(const V*)(x + k * ld + c);
        *(V*)(target + c) = sum * reciprocal[r];
      }
    }
  }

  // False when a result left the finite numbers.
  AUTOINV_INLINE bool finite() {
    V sum = {};
    for (int i = 0; i < n * ld; i += L) sum += *(const V*)(x + i);
    T total = 0;
    for (int l = 0; l < L; ++l) total += sum[l];
    return total - total == 0;
  }

  AUTOINV_INLINE void write(T* to) {
    for (int r = 0; r < n; ++r) {
      for (int k = 0; k < n; ++k) to[r * n + order[k]] = x[r * ld + k];
    }
  }

  AUTOINV_INLINE bool invert(const Batch& batch, const T* from, T* to) {
    copy_matrix(batch, from, a, ld);
    if (!factor()) return false;
    invert_lower();
    solve_upper();
    if (!finite()) return false;
    write(to);
    return true;
  }
};

template <class T>
void invert_by_rows(const Batch& batch, int64_t first, int64_t last, Doubtful& doubtful) {
  Rows<T> rows;
  rows.n = batch.n;
  rows.ld = (batch.n + rows.L - 1) / rows.L * rows.L;
  for (int i = 0; i < rows.n * rows.ld; i += rows.L) *(Vector<T>*)(rows.a + i) = Vector<T>{};
  const int64_t size = int64_t{batch.n} * batch.n;
  for (int64_t i = first; i < last; ++i) {
    T* to = static_cast<T*>(batch.dst) + i * size;
    if (!rows.invert(batch, matrix_at<T>(batch, i), to)) add_doubtful(doubtful, i);
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

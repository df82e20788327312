// One matrix a lane: as many matrices as a vector has lanes go through LU with partial pivoting
// together, then through L^-1 and U^-1 on the identity.
//
// LU is left-looking: a column stays in registers while all earlier steps are applied to it, each
// lane's rows swapped as its own pivots say. In-place Gauss-Jordan would be simpler, but its right
// residual was up to 38 times LU's where rows are graded.
// Source: Golub and Van Loan, Matrix Computations, 4th ed., section 3.2.9 (gaxpy LU).
#pragma once

#include "simd.hpp"
#include "transpose.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T, int N>
struct Lanes {
  static constexpr int L = Simd<T>::lanes;
  using V = Vector<T>;
  using M = Mask<T>;
  // Up to here columns are unrolled too, so that small matrices never leave the registers.
  static constexpr bool kUnrollColumns = N <= 4;

  V a[N * N];       // A, then L below the diagonal and U on and above it
  V x[N * N];       // U^-1 L^-1, then A^-1
  V reciprocal[N];  // of the pivots
  M pivot[N];       // the row that step k swapped with row k
  M doubtful;

  template <class Body>
  AUTOINV_INLINE void for_columns(Body body) {
    if constexpr (kUnrollColumns) {
      unroll<0, N>([&](auto c) AUTOINV_LAMBDA { body(c.value); });
    } else {
      for (int c = 0; c < N; ++c) body(c);
    }
  }

  // Swaps entry K with each lane's pivot of step K.
  template <int K>
  AUTOINV_INLINE void swap(V* column) {
    const V old = column[K];
    V chosen = old;
    unroll<K + 1, N>([&](auto r) AUTOINV_LAMBDA {
      const M here = pivot[K] == r.value;
      chosen = here ? column[r.value] : chosen;
      column[r.value] = here ? old : column[r.value];
    });
    column[K] = chosen;
  }

  // The first row of the largest magnitude, as LAPACK chooses it.
  template <int K>
  AUTOINV_INLINE void find_pivot(const V* column) {
    V best = magnitude<T>(column[K]);
    M row = M{} + K;
    unroll<K + 1, N>([&](auto r) AUTOINV_LAMBDA {
      const V candidate = magnitude<T>(column[r.value]);
      row = candidate > best ? M{} + r.value : row;
      best = candidate > best ? candidate : best;
    });
    pivot[K] = row;
  }

  template <int K>
  AUTOINV_INLINE void finish_column(V* column, V floor) {
    find_pivot<K>(column);
    swap<K>(column);
    const V size = magnitude<T>(column[K]);
    // Written so that NaN is doubtful too.
    const M good = (size > floor) & (size > Simd<T>::smallest_pivot) & (size < Simd<T>::largest_pivot);
    doubtful |= ~good;
    reciprocal[K] = 1 / column[K];
    unroll<K + 1, N>([&](auto r) AUTOINV_LAMBDA { column[r.value] *= reciprocal[K]; });
  }

  AUTOINV_INLINE void factor_column(int c, V floor) {
    V column[N];
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA { column[r.value] = a[r.value * N + c]; });
    unroll<0, N>([&](auto k) AUTOINV_LAMBDA {
      if (k.value < c) {
        swap<k.value>(column);
        unroll<k.value + 1, N>([&](auto r) AUTOINV_LAMBDA {
          column[r.value] -= a[r.value * N + k.value] * column[k.value];
        });
      }
      if (k.value == c) finish_column<k.value>(column, floor);
    });
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA { a[r.value * N + c] = column[r.value]; });
  }

  // The multipliers of column c as later swaps leave them.
  AUTOINV_INLINE void order_multipliers(int c) {
    V column[N];
    unroll<1, N>([&](auto r) AUTOINV_LAMBDA { column[r.value] = a[r.value * N + c]; });
    unroll<1, N>([&](auto k) AUTOINV_LAMBDA {
      if (k.value > c) swap<k.value>(column);
    });
    unroll<1, N>([&](auto r) AUTOINV_LAMBDA {
      if (r.value > c) a[r.value * N + c] = column[r.value];
    });
  }

  // Column c of U^-1 L^-1.
  AUTOINV_INLINE void solve_column(int c) {
    V y[N];
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
      y[r.value] = r.value < c ? V{} : r.value == c ? V{} + 1 : -a[r.value * N + c];
    });
    unroll<1, N>([&](auto k) AUTOINV_LAMBDA {
      if (k.value <= c) return;
      unroll<k.value + 1, N>([&](auto r) AUTOINV_LAMBDA { y[r.value] -= a[r.value * N + k.value] * y[k.value]; });
    });
    unroll<0, N>([&](auto i) AUTOINV_LAMBDA {
      constexpr int k = N - 1 - i.value;
      y[k] *= reciprocal[k];
      unroll<0, k>([&](auto r) AUTOINV_LAMBDA { y[r.value] -= a[r.value * N + k] * y[k]; });
    });
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA { x[r.value * N + c] = y[r.value]; });
  }

  // Row r's entries to the columns that they belong to: the swaps undone, last one first.
  AUTOINV_INLINE V order_row(int r) {
    V row[N];
    V sum = {};
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA { row[c.value] = x[r * N + c.value]; sum += row[c.value]; });
    unroll<1, N>([&](auto i) AUTOINV_LAMBDA { swap<N - 1 - i.value>(row); });
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA { x[r * N + c.value] = row[c.value]; });
    return sum;
  }

  AUTOINV_INLINE V largest() {
    V best = {};
    for_columns([&](int c) AUTOINV_LAMBDA {
      unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
        const V candidate = magnitude<T>(a[r.value * N + c]);
        best = candidate > best ? candidate : best;
      });
    });
    return best;
  }

  AUTOINV_INLINE void transpose_matrices() {
    for_columns([&](int r) AUTOINV_LAMBDA {
      for (int c = 0; c < r; ++c) {
        const V kept = a[r * N + c];
        a[r * N + c] = a[c * N + r];
        a[c * N + r] = kept;
      }
    });
  }

  // Fills x from a; sets `doubtful` in lanes whose matrices are to be left to torch.
  AUTOINV_INLINE void invert() {
    const V floor = largest() * T(8 * N * Simd<T>::epsilon);
    doubtful = M{};
    for_columns([&](int c) AUTOINV_LAMBDA { factor_column(c, floor); });
    for_columns([&](int c) AUTOINV_LAMBDA {
      if (c < N - 2) order_multipliers(c);
    });
    for_columns([&](int c) AUTOINV_LAMBDA { solve_column(c); });
    V sum = {};
    for_columns([&](int r) AUTOINV_LAMBDA { sum += order_row(r); });
    doubtful |= ~(sum - sum == V{});
  }
};

}  // namespace AUTOINV_SET
}  // namespace autoinv

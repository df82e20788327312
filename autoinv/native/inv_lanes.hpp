// Inverts one matrix per SIMD lane: LU with partial pivoting of as many matrices as a vector has
// lanes, then L^-1 and U^-1 applied to the identity.
//
// LU is left-looking: a column stays in registers while all earlier steps are applied to it, with
// rows swapped lane by lane, because each matrix has its own pivots. In-place Gauss-Jordan would be
// simpler, but its right residual was up to 38 times that of LU where rows are graded.
//
// Every element sees the same operations in the same order as in inv_rows.hpp, and the tests for fallback
// use maxima alone: the bits of an inverse do not depend on which kernel serves.
// Source: Golub and Van Loan, Matrix Computations, 4th ed., section 3.2.9 (gaxpy LU).
#pragma once

#include "mask.hpp"
#include "pivot.hpp"
#include "simd.hpp"
#include "transpose.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T, int N>
struct Lanes {
  static constexpr int L = Simd<T>::lanes;
  using V = Vector<T>;
  using I = Integers<T>;
  using M = Mask<T>;
  // Up to this n columns are unrolled too: no branches, and the smallest matrices stay in registers.
  static constexpr bool kUnrollColumns = N <= (L * sizeof(T) > 16 ? 8 : 4);

  // Whether columns are put in order by selects while in lane order, or later in memory order.
  static constexpr bool kOrderInLanes = N <= 8;

  // Vectors from row to row. One more than N where a column would otherwise map to few cache sets.
  static constexpr int kLd = N % 16 == 0 ? N + 1 : N;

  const T* next_src = nullptr;  // what to prefetch meanwhile, or null
  T* next_dst = nullptr;
  V a[N * kLd];     // A, then L below the diagonal and U on and above it
  V x[N * kLd];     // U^-1 L^-1, then A^-1
  V reciprocal[N];  // of the pivots
  I pivot[N];       // the row that step k swapped with row k
  M swapped[kUnrollColumns ? N * N : 1];  // [k * N + r]: the same as a mask of lanes where it is row r
  M good;           // lanes that need no fallback
  V rounding;       // 8 n eps times the largest magnitude in A
  V threshold;      // pivots must exceed it
  V most;           // the largest magnitude among the results
  V zero;           // the results' first row times 0, summed: NaN where any result is not finite

  template <class Body>
  AUTOINV_INLINE static void for_columns(Body body) {
    if constexpr (kUnrollColumns) {
      unroll<0, N>([&](auto c) AUTOINV_LAMBDA { body(c.value); });
    } else {
      for (int c = 0; c < N; ++c) body(c);
    }
  }

  // Lanes where step K swapped row K with row R.
  template <int K, int R>
  AUTOINV_INLINE M swapped_with() {
    if constexpr (kUnrollColumns) return swapped[K * N + R];
    else return equal<T>(pivot[K], I{} + R);
  }

  template <int K, class Vec>
  AUTOINV_INLINE void swap(Vec* column) {
    const Vec old = column[K];
    Vec chosen = old;
    unroll<K + 1, N>([&](auto r) AUTOINV_LAMBDA {
      const M here = swapped_with<K, r.value>();
      chosen = select<T>(here, column[r.value], chosen);
      column[r.value] = select<T>(here, old, column[r.value]);
    });
    column[K] = chosen;
  }

  // The first row of the largest magnitude, as LAPACK chooses it, but for the bits that pivot_size drops.
  // Returns its size.
  template <int K>
  AUTOINV_INLINE V find_pivot(const V* column) {
    V best = pivot_size<T>(column[K]);
    I row = I{} + K;
    unroll<K + 1, N>([&](auto r) AUTOINV_LAMBDA {
      const V size = pivot_size<T>(column[r.value]);
      const M better = greater<T>(size, best);
      best = larger_magnitude<T>(best, size);
      if constexpr (kUnrollColumns) {
        unroll<K + 1, r.value>([&](auto earlier) AUTOINV_LAMBDA { swapped[K * N + earlier.value] &= ~better; });
        swapped[K * N + r.value] = better;
      } else {
        row = select<T>(better, I{} + r.value, row);
      }
    });
    pivot[K] = row;
    return best;
  }

  template <int K>
  AUTOINV_INLINE void finish_column(V* column) {
    const V size = find_pivot<K>(column);
    swap<K>(column);
    // A NaN that the size does not show is found among the results.
    good &= greater<T>(size, threshold) & greater<T>(V{} + Simd<T>::largest_pivot, size);
    reciprocal[K] = 1 / column[K];
    unroll<K + 1, N>([&](auto r) AUTOINV_LAMBDA { column[r.value] *= reciprocal[K]; });
  }

  AUTOINV_INLINE void factor_column(int c) {
    V column[N];
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA { column[r.value] = a[r.value * kLd + c]; });
    unroll<0, N>([&](auto k) AUTOINV_LAMBDA {
      if (k.value < c) {
        swap<k.value>(column);
        unroll<k.value + 1, N>([&](auto r) AUTOINV_LAMBDA {
          column[r.value] = subtract_product<T>(column[r.value], a[r.value * kLd + k.value], column[k.value]);
        });
      }
      if (k.value == c) finish_column<k.value>(column);
    });
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA { a[r.value * kLd + c] = column[r.value]; });
  }

  // Applies the swaps of the later steps to the multipliers of column c.
  AUTOINV_INLINE void order_multipliers(int c) {
    V column[N];
    unroll<1, N>([&](auto r) AUTOINV_LAMBDA { column[r.value] = a[r.value * kLd + c]; });
    unroll<1, N>([&](auto k) AUTOINV_LAMBDA {
      if (k.value > c) swap<k.value>(column);
    });
    unroll<1, N>([&](auto r) AUTOINV_LAMBDA {
      if (r.value > c) a[r.value * kLd + c] = column[r.value];
    });
  }

  // Column c of U^-1 L^-1.
  AUTOINV_INLINE void solve_column(int c) {
    V y[N];
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
      y[r.value] = r.value < c ? V{} : r.value == c ? V{} + 1 : 0 - a[r.value * kLd + c];
    });
    unroll<1, N>([&](auto k) AUTOINV_LAMBDA {
      if (k.value <= c) return;
      unroll<k.value + 1, N>([&](auto r) AUTOINV_LAMBDA {
        y[r.value] = subtract_product<T>(y[r.value], a[r.value * kLd + k.value], y[k.value]);
      });
    });
    unroll<0, N>([&](auto i) AUTOINV_LAMBDA {
      constexpr int k = N - 1 - i.value;
      y[k] *= reciprocal[k];
      unroll<0, k>([&](auto r) AUTOINV_LAMBDA {
        y[r.value] = subtract_product<T>(y[r.value], a[r.value * kLd + k], y[k]);
      });
    });
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
      x[r.value * kLd + c] = y[r.value];
      most = larger_magnitude<T>(most, y[r.value]);
    });
    zero = add_product<T>(zero, y[0], V{});
  }

  // Moves the entries of row r to their final columns by undoing the swaps, last one first.
  AUTOINV_INLINE void order_row(int r) {
    V row[N];
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA { row[c.value] = x[r * kLd + c.value]; });
    unroll<1, N>([&](auto i) AUTOINV_LAMBDA { swap<N - 1 - i.value>(row); });
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA { x[r * kLd + c.value] = row[c.value]; });
  }

  // to[c]: the column of U^-1 L^-1 that is column c of the inverse.
  AUTOINV_INLINE void column_order(I* to) {
    I order[N];
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA { order[c.value] = I{} + c.value; });
    unroll<1, N>([&](auto i) AUTOINV_LAMBDA { swap<N - 1 - i.value>(order); });
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA { to[c.value] = order[c.value]; });
  }

  AUTOINV_INLINE V largest() {
    V best = {};
    for_columns([&](int c) AUTOINV_LAMBDA {
      unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
        best = larger_magnitude<T>(best, a[r.value * kLd + c]);
      });
    });
    return best;
  }

  AUTOINV_INLINE static void transpose_matrices(V* matrices) {
    const auto exchange = [&](int r, int c) AUTOINV_LAMBDA {
      const V kept = matrices[r * kLd + c];
      matrices[r * kLd + c] = matrices[c * kLd + r];
      matrices[c * kLd + r] = kept;
    };
    if constexpr (kUnrollColumns) {
      unroll<1, N>([&](auto r) AUTOINV_LAMBDA {
        unroll<0, r.value>([&](auto c) AUTOINV_LAMBDA { exchange(r.value, c.value); });
      });
    } else {
      for (int r = 1; r < N; ++r) {
        for (int c = 0; c < r; ++c) exchange(r, c);
      }
    }
  }

  // Prefetches one column's part: everything at once would fill the processor's queues and stall.
  AUTOINV_INLINE void prefetch_next(const T* next, int c, bool to_write) {
    if (next == nullptr) return;
    unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
      if (to_write) __builtin_prefetch(next + (c * N + r.value) * L, 1);
      else __builtin_prefetch(next + (c * N + r.value) * L, 0);
    });
  }

  AUTOINV_INLINE void start() {
    rounding = largest() * T(8 * N * Simd<T>::epsilon);
    threshold = larger_magnitude<T>(rounding, V{} + Simd<T>::smallest_pivot);
    good = ~M{};
    most = V{};
    zero = V{};
  }

  // The inverse of a matrix that is singular but for rounding has a norm of about 1 / (eps |A|),
  // whatever its pivots are, so results must stay below 1 / rounding. A result that is not finite
  // makes the rows above it so, therefore the first row is enough to find it.
  AUTOINV_INLINE void finish() {
    good &= greater<T>(V{} + 1, most * rounding);
    good &= greater<T>(V{} + 1, zero);
  }
};

// Computes x and `good` from a, for one block or for several independent ones. The steps of several
// blocks are interleaved, so that the processor has work in one while another waits for a division.
template <class T, int N, int Count>
AUTOINV_INLINE void invert_lanes(Lanes<T, N> (&block)[Count]) {
  const auto each = [&](auto step) AUTOINV_LAMBDA {
    unroll<0, Count>([&](auto b) AUTOINV_LAMBDA { step(block[b.value]); });
  };
  const auto each_column = [&](auto step) AUTOINV_LAMBDA {
    Lanes<T, N>::for_columns([&](int c) AUTOINV_LAMBDA {
      each([&](Lanes<T, N>& lanes) AUTOINV_LAMBDA { step(lanes, c); });
    });
  };
  each([](Lanes<T, N>& lanes) AUTOINV_LAMBDA { lanes.start(); });
  each_column([](Lanes<T, N>& lanes, int c) AUTOINV_LAMBDA {
    lanes.prefetch_next(lanes.next_src, c, false);
    lanes.factor_column(c);
  });
  each_column([](Lanes<T, N>& lanes, int c) AUTOINV_LAMBDA {
    if (c < N - 2) lanes.order_multipliers(c);
  });
  each_column([](Lanes<T, N>& lanes, int c) AUTOINV_LAMBDA {
    lanes.prefetch_next(lanes.next_dst, c, true);
    lanes.solve_column(c);
  });
  if constexpr (Lanes<T, N>::kOrderInLanes) {
    each_column([](Lanes<T, N>& lanes, int r) AUTOINV_LAMBDA { lanes.order_row(r); });
  }
  each([](Lanes<T, N>& lanes) AUTOINV_LAMBDA { lanes.finish(); });
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

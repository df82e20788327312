// Inverts one matrix at a time with SIMD along its rows: blocked right-looking LU with partial
// pivoting, then L^-1 and U^-1 applied to the identity, whose columns are put in their final order
// while they are written. For n too large for the lane kernels, and for batches too small to fill
// their lanes.
// For a small n each element sees the same operations in the same order as in inv_lanes.hpp.
// Source: Golub and Van Loan, Matrix Computations, 4th ed., sections 3.1 and 3.2.11.
#pragma once

#include "batch.hpp"
#include "kernel.hpp"
#include "mask.hpp"
#include "pivot.hpp"
#include "reorder.hpp"
#include "simd.hpp"
#include "tiles.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T>
struct Rows {
  static constexpr int L = Simd<T>::lanes;
  static constexpr int kChains = 4;
  static constexpr int kMaxLd = (kMaxN + L - 1) / L * L + L;
  using V = Vector<T>;
  using I = Integers<T>;

  int n;
  int width;            // elements in a row, n rounded up to whole vectors
  int ld;               // elements from row to row: an odd number of vectors, to spread over cache sets
  int order[kMaxN];     // order[k]: the original row that became pivot k
  T* a_row[kMaxN];      // rows of A, L and U in pivot order
  T* x_row[kMaxN];
  T reciprocal[kMaxN];  // of the pivots
  T rounding;           // 8 n eps times the largest magnitude in A
  static constexpr int kCapacity = kMaxN * kMaxLd + kChains * L;  // for_vectors reads beyond the last row
  alignas(64) T a[kCapacity];  // rows stay in their original places
  alignas(64) T x[kCapacity];  // I, then L^-1, then A^-1 with columns in pivot order

  inline explicit Rows(int size) : n(size), width((size + L - 1) / L * L), ld(width / L % 2 ? width : width + L) {
    clear(a);  // the columns beyond n stay zero
    for (int r = 0; r < n; ++r) x_row[r] = x + r * ld;
  }

  AUTOINV_INLINE void clear(T* matrix) {
    for (int i = 0; i < n * ld + kChains * L; i += L) *(V*)(matrix + i) = V{};
  }

  // Calls body(vector, chain) for every vector of a or x, in four independent chains. What it reads
  // beyond the matrix is zero.
  template <class Body>
  AUTOINV_INLINE void for_vectors(const T* from, Body body) {
    for (int i = 0; i < n * ld; i += kChains * L) {
      unroll<0, kChains>([&](auto c) AUTOINV_LAMBDA { body(*(const V*)(from + i + c.value * L), c.value); });
    }
  }

  AUTOINV_INLINE T largest(const T* matrix) {
    V best[kChains] = {};
    for_vectors(matrix, [&](V value, int c) AUTOINV_LAMBDA { best[c] = larger_magnitude<T>(best[c], value); });
    for (int c = 1; c < kChains; ++c) best[0] = larger_magnitude<T>(best[0], best[c]);
    T result = 0;
    for (int l = 0; l < L; ++l) result = best[0][l] > result ? best[0][l] : result;
    return result;
  }

  AUTOINV_INLINE int find_pivot(int k) {
    int64_t best = 0;
    for (int r = k; r < n; ++r) {
      const int64_t next = candidate(a_row[r][k], r);
      best = next > best ? next : best;
    }
    return row_of(best);
  }

  // False when the pivot is not clearly above rounding.
  AUTOINV_INLINE bool take_pivot(int k, int pivot_row, T threshold) {
    swap(order[k], order[pivot_row]);
    swap(a_row[k], a_row[pivot_row]);
    const T pivot = a_row[k][k];
    const T size = pivot_size<T>(pivot);
    reciprocal[k] = 1 / pivot;
    return size > threshold && size < Simd<T>::largest_pivot;
  }

  template <class Item>
  AUTOINV_INLINE static void swap(Item& a, Item& b) {
    const Item kept = a;
    a = b;
    b = kept;
  }

  // Subtracts multiples of row k from the rows below, within the vector of columns that starts at
  // `panel` and holds column k, where the multipliers stay. Returns the pivot row of column k + 1
  // (meaningless where that column is beyond the panel).
  AUTOINV_INLINE int eliminate(int k, int panel) {
    const I lane = lane_numbers<T>() - Integer<T>(k - panel);
    const I right = (I)(lane > 0);
    const V pivot_row = (V)(*(const I*)(a_row[k] + panel) & right);
    const Mask<T> here = equal<T>(lane, I{});
    const T scale = reciprocal[k];
    const int rows = n;
    int64_t best = 0;
    for (int r = k + 1; r < rows; ++r) {
      T* target = a_row[r];
      const V multiplier = broadcast<T>(target[k] * scale);
      V* vector = (V*)(target + panel);
      // Both factors are +0 on the left, so that the multipliers there keep even the sign of a zero.
      const V factor = (V)((I)multiplier & right);
      *vector = select<T>(here, multiplier, subtract_product<T>(*vector, factor, pivot_row));
      const int64_t next = candidate(target[k + 1], r);
      best = next > best ? next : best;
    }
    return row_of(best);
  }

  inline bool factor() {
    rounding = 8 * n * Simd<T>::epsilon * largest(a);
    const T threshold = rounding > Simd<T>::smallest_pivot ? rounding : Simd<T>::smallest_pivot;
    for (int k = 0; k < n; ++k) {
      order[k] = k;
      a_row[k] = a + k * ld;
    }
    for (int panel = 0; panel < n; panel += L) {
      const int end = panel + L < n ? panel + L : n;
      int pivot_row = find_pivot(panel);
      for (int k = panel; k < end; ++k) {
        if (!take_pivot(k, pivot_row, threshold)) return false;
        pivot_row = eliminate(k, panel);
      }
      if (end < n) update_trailing(panel, end);
    }
    return true;
  }

  // Updates the columns right of a panel: U's rows by forward substitution, then the rows below.
  AUTOINV_INLINE void update_trailing(int panel, int end) {
    for_row_tiles(panel, end, [&](auto rows, int r) AUTOINV_LAMBDA {
      for_tiles<T, rows.value>(end, width, [&](auto& tile, int c) AUTOINV_LAMBDA {
        tile.load(a_row + r, c);
        tile.subtract(a_row + r, a_row, c, panel, r);
        tile.unit_lower(a_row + r, r);
        tile.store(a_row + r, c);
      });
    });
    for_row_tiles(end, n, [&](auto rows, int r) AUTOINV_LAMBDA {
      for_tiles<T, rows.value>(end, width, [&](auto& tile, int c) AUTOINV_LAMBDA {
        tile.load(a_row + r, c);
        tile.subtract(a_row + r, a_row, c, panel, end);
        tile.store(a_row + r, c);
      });
    });
  }

  template <class Body>
  AUTOINV_INLINE static void for_row_tiles(int begin, int end, Body body) {
    int r = begin;
    for (; r + kTileRows <= end; r += kTileRows) body(Index<kTileRows>{}, r);
    for (; r < end; ++r) body(Index<1>{}, r);
  }

  // x = L^-1. It is lower triangular, so that column c starts from row c.
  inline void invert_lower() {
    clear(x);
    for (int r = 0; r < n; ++r) x[r * ld + r] = 1;
    for_row_tiles(0, n, [&](auto rows, int r) AUTOINV_LAMBDA {
      const int end = (r + rows.value + L - 1) / L * L;
      for_tiles<T, rows.value>(0, end, [&](auto& tile, int c) AUTOINV_LAMBDA {
        tile.load(x_row + r, c);
        tile.subtract(a_row + r, x_row, c, c, r);
        tile.unit_lower(a_row + r, r);
        tile.store(x_row + r, c);
      });
    });
  }

  // x = U^-1 x, from the last row to the first.
  inline void solve_upper() {
    const auto solve = [&](auto rows, int r) AUTOINV_LAMBDA {
      for_tiles<T, rows.value>(0, width, [&](auto& tile, int c) AUTOINV_LAMBDA {
        tile.load(x_row + r, c);
        tile.template subtract<true>(a_row + r, x_row, c, r + rows.value, n);
        tile.upper(a_row + r, reciprocal, r);
        tile.store(x_row + r, c);
      });
    };
    int r = n;
    for (; r % kTileRows != 0; --r) solve(Index<1>{}, r - 1);
    for (; r > 0; r -= kTileRows) solve(Index<kTileRows>{}, r - kTileRows);
  }

  // Whether A is not singular up to rounding and every result is finite; see Lanes::finish.
  AUTOINV_INLINE bool is_good() {
    V zero = {};
    for (int c = 0; c < width; c += L) zero = add_product<T>(zero, *(const V*)(x + c), V{});
    for (int l = 1; l < L; ++l) zero[0] += zero[l];
    return largest(x) * rounding < 1 && zero[0] == 0;
  }

  // False when the matrix needs fallback; nothing is written then.
  AUTOINV_INLINE bool invert(const Batch& batch, const T* from, T* to) {
    copy_matrix(batch, from, a, ld);
    if (!factor()) return false;
    invert_lower();
    solve_upper();
    if (!is_good()) return false;
    if (batch.column_major) write_columns_as_rows(x, ld, order, n, to);
    else write_columns(x, ld, order, n, to);
    return true;
  }
};

template <class T>
void invert_by_rows(const Batch& batch, int64_t first, int64_t last, FallbackList& fallback) {
  Rows<T> rows(batch.n);
  const int64_t size = int64_t{batch.n} * batch.n;
  for (int64_t i = first; i < last; ++i) {
    T* to = static_cast<T*>(batch.dst) + i * size;
    if (!rows.invert(batch, matrix_at<T>(batch, i), to)) add_fallback(fallback, i);
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

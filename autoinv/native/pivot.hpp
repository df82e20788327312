// Pivot search as a maximum over integers that hold magnitude and row, without branches.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

// A candidate and its row in one integer, ordered by magnitude, with NaN above all. float64 loses its
// last six bits, which changes the choice only between pivots of nearly equal magnitude. (GCC compiles
// a comparison that selects two values to a branch, and half of those are mispredicted.)
template <class T>
AUTOINV_INLINE int64_t candidate(T value, int row) {
  const int64_t bits = bits_of(value) & Simd<T>::magnitude_bits;
  return (sizeof(T) == 8 ? bits & ~int64_t{kMaxN - 1} : bits * kMaxN) | (kMaxN - 1 - row);
}

AUTOINV_INLINE int row_of(int64_t candidate) { return kMaxN - 1 - int(candidate & (kMaxN - 1)); }

}  // namespace AUTOINV_SET
}  // namespace autoinv

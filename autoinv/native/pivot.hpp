// How pivots are compared, the same in every kernel, and the search as a maximum over integers that hold
// magnitude and row, without branches.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

// What of a candidate counts: its magnitude; float64 loses its last six bits, which changes the choice
// only between pivots of nearly equal magnitude.
template <class T>
constexpr Integer<T> kPivotBits = sizeof(T) == 8 ? Simd<T>::magnitude_bits & ~Integer<T>{kMaxN - 1} : Simd<T>::magnitude_bits;

template <class T>
AUTOINV_INLINE Vector<T> pivot_size(Vector<T> value) {
  return (Vector<T>)((Integers<T>)value & kPivotBits<T>);
}

template <class T>
AUTOINV_INLINE T pivot_size(T value) {
  const Integer<T> bits = bits_of(value) & kPivotBits<T>;
  __builtin_memcpy(&value, &bits, sizeof bits);
  return value;
}

// A candidate and its row in one integer, ordered by what counts, with NaN above all. (GCC compiles
// a comparison that selects two values to a branch, and half of those are mispredicted.)
template <class T>
AUTOINV_INLINE int64_t candidate(T value, int row) {
  const int64_t bits = bits_of(value) & kPivotBits<T>;
  return (sizeof(T) == 8 ? bits : bits * kMaxN) | (kMaxN - 1 - row);
}

AUTOINV_INLINE int row_of(int64_t candidate) { return kMaxN - 1 - int(candidate & (kMaxN - 1)); }

}  // namespace AUTOINV_SET
}  // namespace autoinv

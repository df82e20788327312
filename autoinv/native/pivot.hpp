// The search for a pivot as a chain of maxima, without branches or indices.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

// A candidate and its row in one number, whose order is that of the magnitudes, with NaN above all.
// float64 gives up the last six bits, which no bound feels. (GCC makes branches of a comparison that
// selects two values, and every other one of those is mispredicted.)
template <class T>
AUTOINV_INLINE int64_t candidate(T value, int row) {
  const int64_t bits = bits_of(value) & Simd<T>::magnitude_bits;
  return (sizeof(T) == 8 ? bits & ~int64_t{kMaxN - 1} : bits * kMaxN) | (kMaxN - 1 - row);
}

AUTOINV_INLINE int row_of(int64_t candidate) { return kMaxN - 1 - int(candidate & (kMaxN - 1)); }

}  // namespace AUTOINV_SET
}  // namespace autoinv

// Reads matrices of a strided batch: where each starts, and copies of it in row-major order.
#pragma once

#include "kernel.hpp"
#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T>
AUTOINV_INLINE const T* matrix_at(const Batch& batch, int64_t index) {
  int64_t offset = 0;
  if (batch.dims == 1) {  // no division for the common case
    offset = index * batch.stride[0];
  } else {
    for (int d = batch.dims - 1; d >= 0; --d) {
      offset += (index % batch.shape[d]) * batch.stride[d];
      index /= batch.shape[d];
    }
  }
  return static_cast<const T*>(batch.src) + offset;
}

// Copies whole vectors, the last one overlapping; a row shorter than a vector is copied by elements.
template <class T>
AUTOINV_INLINE void copy_row(const T* from, T* to, int n) {
  constexpr int L = Simd<T>::lanes;
  if (n < L) {
    for (int c = 0; c < n; ++c) to[c] = from[c];
    return;
  }
  for (int c = 0; c + L <= n; c += L) store(to + c, load(from + c));
  store(to + n - L, load(from + n - L));
}

// Copies one matrix of any strides into row-major order with `ld` elements a row.
template <class T>
inline void copy_matrix(const Batch& batch, const T* from, T* to, int ld) {
  const int n = batch.n;
  for (int r = 0; r < n; ++r) {
    const T* row = from + r * batch.row_stride;
    if (batch.column_stride == 1) {
      copy_row(row, to + r * ld, n);
    } else {
      for (int c = 0; c < n; ++c) to[r * ld + c] = row[c * batch.column_stride];
    }
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

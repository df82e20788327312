// Feeds the lane kernels: blocks of as many matrices as a vector has lanes, the last one filled up.
#pragma once

#include "kernel.hpp"
#include "lanes.hpp"
#include "walk.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T, int N>
struct Blocks {
  static constexpr int L = Simd<T>::lanes;
  static constexpr int kSize = N * N;

  const Batch& batch;
  Doubtful& doubtful;
  bool whole;       // matrices lie one behind the other
  bool transposed;  // and are column-major
  alignas(64) T spare[L * kSize];

  AUTOINV_INLINE Blocks(const Batch& b, Doubtful& d) : batch(b), doubtful(d) {
    transposed = N > 1 && b.row_stride == 1 && b.column_stride == N;
    const bool rows = N == 1 || (b.row_stride == N && b.column_stride == 1);
    whole = (rows || transposed) && (b.dims == 0 || (b.dims == 1 && b.stride[0] == kSize));
  }

  // Collects `count` matrices in `spare`, and fills the lanes left over with the first.
  AUTOINV_INLINE void collect(int64_t first, int count) {
    for (int l = 0; l < count; ++l) {
      const T* from = matrix_at<T>(batch, first + l);
      if (transposed) copy(from, spare + l * kSize);
      else copy_matrix(batch, from, spare + l * kSize, N);
    }
    for (int l = count; l < L; ++l) copy(spare, spare + l * kSize);
  }

  AUTOINV_INLINE static void copy(const T* from, T* to) { __builtin_memcpy(to, from, kSize * sizeof(T)); }

  __attribute__((noinline)) void run(int64_t first, int count) {
    T* to = static_cast<T*>(batch.dst) + first * kSize;
    const T* from = spare;
    if (whole && count == L) from = static_cast<const T*>(batch.src) + first * kSize;
    else collect(first, count);
    Lanes<T, N> lanes;
    load_lanes<T, kSize>(from, lanes.a);
    if (transposed) lanes.transpose_matrices();
    lanes.invert();
    const bool clean = count == L && !any<T>(lanes.doubtful);
    store_lanes<T, kSize>(lanes.x, clean ? to : spare);
    if (!clean) distribute(first, count, lanes.doubtful, to);
  }

  // Writes the good ones of `spare`, lists the others.
  AUTOINV_INLINE void distribute(int64_t first, int count, Mask<T> doubt, T* to) {
    for (int l = 0; l < count; ++l) {
      if (doubt[l]) add_doubtful(doubtful, first + l);
      else copy(spare + l * kSize, to + l * kSize);
    }
  }
};

template <class T, int N>
__attribute__((noinline)) void invert_by_lanes(const Batch& batch, int64_t first, int64_t last, Doubtful& doubtful) {
  Blocks<T, N> blocks(batch, doubtful);
  int64_t i = first;
  for (; i + blocks.L <= last; i += blocks.L) blocks.run(i, blocks.L);
  if (i < last) blocks.run(i, static_cast<int>(last - i));
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

// Splits a batch into blocks of as many matrices as a vector has lanes, pads the last block, and runs
// the lane kernels on them.
#pragma once

#include "batch.hpp"
#include "inv_lanes.hpp"
#include "kernel.hpp"
#include "reorder.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T, int N>
struct Blocks {
  static constexpr int L = Simd<T>::lanes;
  static constexpr int kSize = N * N;

  // A block reads L matrices side by side, which the hardware prefetchers follow only while matrices
  // are small. With software prefetch, 8 x 8 float64 from memory takes 107 ns instead of 168.
  static constexpr bool kPrefetch = N > 4;
  static constexpr int64_t kPrefetchAboveBytes = int64_t{1} << 18;  // less stays in the second-level cache

  const Batch& batch;
  FallbackList& fallback;
  bool adjacent;       // matrices lie one behind the other, without gaps
  bool transposed;     // and are column-major
  bool exceeds_cache;  // the batch is larger than kPrefetchAboveBytes
  alignas(64) T buffer[L * kSize];

  AUTOINV_INLINE Blocks(const Batch& b, int64_t count, FallbackList& list) : batch(b), fallback(list) {
    exceeds_cache = count * kSize * int64_t(sizeof(T)) > kPrefetchAboveBytes;
    transposed = N > 1 && b.row_stride == 1 && b.column_stride == N;
    const bool rows = N == 1 || (b.row_stride == N && b.column_stride == 1);
    adjacent = (rows || transposed) && (b.dims == 0 || (b.dims == 1 && b.stride[0] == kSize));
  }

  // Copies `count` matrices to `buffer`, and pads it with copies of the first.
  AUTOINV_INLINE void collect(int64_t first, int count) {
    for (int l = 0; l < count; ++l) {
      const T* from = matrix_at<T>(batch, first + l);
      if (transposed) copy(from, buffer + l * kSize);
      else copy_matrix(batch, from, buffer + l * kSize, N);
    }
    for (int l = count; l < L; ++l) copy(buffer, buffer + l * kSize);
  }

  AUTOINV_INLINE static void copy(const T* from, T* to) { __builtin_memcpy(to, from, kSize * sizeof(T)); }

  // Inverts `Count` adjacent blocks; the last one holds `count` matrices, the rest is padding.
  template <int Count>
  __attribute__((noinline)) void run(const T* from, int64_t first, int count) {
    Lanes<T, N> lanes[Count];
    unroll<0, Count>([&](auto b) AUTOINV_LAMBDA {
      load_lanes<T, N, Lanes<T, N>::kLd>(from + b.value * L * kSize, lanes[b.value].a);
      if (kPrefetch && exceeds_cache) {
        lanes[b.value].next_src = static_cast<const T*>(batch.src) + (first + L) * kSize;
        lanes[b.value].next_dst = static_cast<T*>(batch.dst) + (first + L) * kSize;
      }
    });
    if (transposed) unroll<0, Count>([&](auto b) AUTOINV_LAMBDA { Lanes<T, N>::transpose_matrices(lanes[b.value].a); });
    if constexpr (Count > 1) invert_lanes(lanes);
    else invert_block(lanes);
    unroll<0, Count>([&](auto b) AUTOINV_LAMBDA {
      write(lanes[b.value], first + b.value * L, b.value == Count - 1 ? count : L);
    });
  }

  // Out of line, so that full, partial and single blocks share one copy of the code.
  __attribute__((noinline)) static void invert_block(Lanes<T, N> (&lanes)[1]) { invert_lanes(lanes); }

  // Inverts one matrix, the same in every lane, so that nothing needs to be transposed.
  AUTOINV_INLINE void run_single(int64_t index) {
    const T* from = matrix_at<T>(batch, index);
    T* to = static_cast<T*>(batch.dst) + index * kSize;
    Lanes<T, N> lanes[1];
    for (int r = 0; r < N; ++r) {
      for (int c = 0; c < N; ++c) {
        lanes[0].a[r * N + c] = broadcast(from[r * batch.row_stride + c * batch.column_stride]);
      }
    }
    invert_block(lanes);
    if (!lane<T>(lanes[0].good, 0)) return add_fallback(fallback, index);
    if (batch.column_major) Lanes<T, N>::transpose_matrices(lanes[0].x);
    for (int i = 0; i < kSize; ++i) to[i] = lanes[0].x[i][0];
  }

  template <int Count>
  AUTOINV_INLINE void run_full(int64_t first) {
    run<Count>(static_cast<const T*>(batch.src) + first * kSize, first, L);
  }

  AUTOINV_INLINE void run_collected(int64_t first, int count) {
    collect(first, count);
    run<1>(buffer, first, count);
  }

  // Writes the inverses of the good ones among `count` matrices, lists the others for fallback.
  AUTOINV_INLINE void write(Lanes<T, N>& lanes, int64_t first, int count) {
    T* to = static_cast<T*>(batch.dst) + first * kSize;
    if (batch.column_major) Lanes<T, N>::transpose_matrices(lanes.x);
    if constexpr (Lanes<T, N>::kOrderInLanes) {
      const bool direct = count == L && all<T>(lanes.good);
      store_lanes<T, N, Lanes<T, N>::kLd>(lanes.x, direct ? to : buffer);
      if (direct) return;
      for (int l = 0; l < count; ++l) {
        if (lane<T>(lanes.good, l)) copy(buffer + l * kSize, to + l * kSize);
        else add_fallback(fallback, first + l);
      }
    } else {
      Integers<T> source[N];
      lanes.column_order(source);
      // A's memory is reused, because another buffer would not fit the first-level cache too.
      T* rows = reinterpret_cast<T*>(lanes.a);
      store_lanes<T, N, Lanes<T, N>::kLd>(lanes.x, rows);
      for (int l = 0; l < count; ++l) {
        const Integer<T>* sources = reinterpret_cast<const Integer<T>*>(source) + l;
        if (!lane<T>(lanes.good, l)) add_fallback(fallback, first + l);
        else if (batch.column_major) reorder_rows<T, N>(rows + l * kSize, sources, to + l * kSize);
        else reorder_columns<T, N>(rows + l * kSize, sources, to + l * kSize);
      }
    }
  }
};

// Interleaves two blocks where the registers suffice (measured: 20 % faster at n = 3, no gain beyond
// n = 4).
template <class T, int N>
void invert_by_lanes(const Batch& batch, int64_t first, int64_t last, FallbackList& fallback) {
  constexpr int L = Simd<T>::lanes;
  constexpr int kInterleaved = N <= 4 ? 2 : 1;
  Blocks<T, N> blocks(batch, last - first, fallback);
  int64_t i = first;
  if (blocks.adjacent) {
    for (; i + kInterleaved * L <= last; i += kInterleaved * L) blocks.template run_full<kInterleaved>(i);
    for (; i + L <= last; i += L) blocks.template run_full<1>(i);
  }
  if constexpr (Lanes<T, N>::kOrderInLanes) {
    if (i + 1 == last) return blocks.run_single(i);
  }
  for (; i < last; i += L) blocks.run_collected(i, static_cast<int>(last - i < L ? last - i : L));
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

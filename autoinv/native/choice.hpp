// Which kernel serves which n: lanes for the small ones, rows beyond, and rows for what is left over
// when it would leave most lanes empty. The bounds are measured crossovers (scripts/bench_kernel.py).
#pragma once

#include "blocks.hpp"
#include "rows.hpp"

namespace autoinv {
namespace AUTOINV_SET {

#if defined(__AVX512F__)
constexpr int kMaxLanesN = 16;   // lanes still lead by half; beyond, they leave the first-level cache
constexpr int kRowsPerMatrix = 3;
#elif defined(__AVX__)
constexpr int kMaxLanesN = 12;   // they would lead to 16; the compile time was worth more
constexpr int kRowsPerMatrix = 4;
#else
constexpr int kMaxLanesN = 8;    // two lanes of float64: rows draw level
constexpr int kRowsPerMatrix = 4;
#endif

// Whether `count` matrices, too few to fill the lanes, are done sooner one by one.
AUTOINV_INLINE bool rows_are_faster(int n, int64_t count) { return count * kRowsPerMatrix <= n - 4; }

template <class T, int N>
AUTOINV_INLINE InvertFunction lane_kernel(int n) {
  if constexpr (N == 0) {
    return invert_by_rows<T>;
  } else {
    return n == N ? invert_by_lanes<T, N> : lane_kernel<T, N - 1>(n);
  }
}

template <class T>
void invert(const Batch& batch, int64_t first, int64_t last, Doubtful& doubtful) {
  const int64_t rest = (last - first) % Simd<T>::lanes;
  const int64_t blocks_end = batch.n > kMaxLanesN || rows_are_faster(batch.n, rest) ? last - rest : last;
  if (first < blocks_end) lane_kernel<T, kMaxLanesN>(batch.n)(batch, first, blocks_end, doubtful);
  if (blocks_end < last) invert_by_rows<T>(batch, blocks_end, last, doubtful);
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

// The inverse: which of its kernels serves which n and batch: inv_blocks.hpp (one matrix per lane)
// for small n, inv_rows.hpp (one matrix at a time) for larger n and for a remainder that would leave
// most lanes empty. Both take every layout. The bounds are measured crossovers
// (scripts/bench_kernel.py). Its backward is in inv_gradient.hpp.
#pragma once

#include "inv_blocks.hpp"
#include "inv_gradient.hpp"
#include "inv_rows.hpp"

namespace autoinv {
namespace AUTOINV_SET {

#if defined(__AVX512F__)
constexpr int kMaxLanesN = 16;   // lanes are faster by half; beyond, they exceed the first-level cache
constexpr int kRowsPerMatrix = 3;
#elif defined(__AVX__)
constexpr int kMaxLanesN = 12;   // lanes are faster up to 16, which was not worth the compile time
constexpr int kRowsPerMatrix = 4;
#else
constexpr int kMaxLanesN = 8;    // with two lanes of float64, rows are as fast
constexpr int kRowsPerMatrix = 4;
#endif

// Whether `count` matrices, too few to fill the lanes, are inverted faster one by one.
AUTOINV_INLINE bool rows_are_faster(int n, int64_t count) { return count * kRowsPerMatrix <= n - 4; }

template <class T, int N>
AUTOINV_INLINE BatchFunction lane_kernel(int n) {
  if constexpr (N == 0) {
    return invert_by_rows<T>;
  } else {
    return n == N ? invert_by_lanes<T, N> : lane_kernel<T, N - 1>(n);
  }
}

template <class T>
void inv(const Batch& batch, int64_t first, int64_t last, FallbackList& fallback) {
  const int64_t rest = (last - first) % Simd<T>::lanes;
  const int64_t blocks_end = batch.n > kMaxLanesN || rows_are_faster(batch.n, rest) ? last - rest : last;
  if (first < blocks_end) lane_kernel<T, kMaxLanesN>(batch.n)(batch, first, blocks_end, fallback);
  if (blocks_end < last) invert_by_rows<T>(batch, blocks_end, last, fallback);
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

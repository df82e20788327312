// Which kernel serves which n: lanes for the small ones, rows beyond.
#pragma once

#include "blocks.hpp"
#include "rows.hpp"

namespace autoinv {
namespace AUTOINV_SET {

constexpr int kMaxLanesN = 16;

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
  lane_kernel<T, kMaxLanesN>(batch.n)(batch, first, last, doubtful);
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

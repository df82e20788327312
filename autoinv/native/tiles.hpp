// Register tiles, a few rows by a few vectors: the inner loops of kernels that work along rows.
#pragma once

#include "simd.hpp"

namespace autoinv {
namespace AUTOINV_SET {

#if defined(__AVX512F__)
constexpr int kTileVectors = 4;  // 4 x 4 sums of the 32 registers
#else
constexpr int kTileVectors = 2;  // 4 x 2 of 16
#endif
constexpr int kTileRows = 4;

// Rows of a tile: sum[r] = target[r] - sum over k of left[r][k] * right[k], at columns from c on.
template <class T, int R, int C>
struct Tile {
  static constexpr int L = Simd<T>::lanes;
  using V = Vector<T>;
  V sum[R][C];

  AUTOINV_INLINE void load(T* const* target, int c) {
    unroll<0, R>([&](auto r) AUTOINV_LAMBDA {
      unroll<0, C>([&](auto v) AUTOINV_LAMBDA { sum[r.value][v.value] = *(const V*)(target[r.value] + c + v.value * L); });
    });
  }

  AUTOINV_INLINE void store(T* const* target, int c) {
    unroll<0, R>([&](auto r) AUTOINV_LAMBDA {
      unroll<0, C>([&](auto v) AUTOINV_LAMBDA { *(V*)(target[r.value] + c + v.value * L) = sum[r.value][v.value]; });
    });
  }

  // In the order of substitution: k upwards, or downwards for the back substitution.
  template <bool Downwards = false>
  AUTOINV_INLINE void subtract(T* const* left, T* const* right, int c, int begin, int end) {
    const T* l[R];
    unroll<0, R>([&](auto r) AUTOINV_LAMBDA { l[r.value] = left[r.value]; });
    const auto step = [&](int k) AUTOINV_LAMBDA {
      V b[C];
      unroll<0, C>([&](auto v) AUTOINV_LAMBDA { b[v.value] = *(const V*)(right[k] + c + v.value * L); });
      unroll<0, R>([&](auto r) AUTOINV_LAMBDA {
        unroll<0, C>([&](auto v) AUTOINV_LAMBDA {
          sum[r.value][v.value] = subtract_product<T>(sum[r.value][v.value], broadcast(l[r.value][k]), b[v.value]);
        });
      });
    };
    if constexpr (Downwards) {
      for (int k = end - 1; k >= begin; --k) step(k);
    } else {
      for (int k = begin; k < end; ++k) step(k);
    }
  }

  // Forward substitution among the tile's own rows, the first of which is row `k` of the matrix.
  AUTOINV_INLINE void unit_lower(T* const* left, int k) {
    unroll<1, R>([&](auto r) AUTOINV_LAMBDA {
      unroll<0, r.value>([&](auto s) AUTOINV_LAMBDA {
        const V factor = broadcast(left[r.value][k + s.value]);
        unroll<0, C>([&](auto v) AUTOINV_LAMBDA {
          sum[r.value][v.value] = subtract_product<T>(sum[r.value][v.value], factor, sum[s.value][v.value]);
        });
      });
    });
  }

  // Back substitution among the same rows.
  AUTOINV_INLINE void upper(T* const* left, const T* reciprocal, int k) {
    unroll<0, R>([&](auto i) AUTOINV_LAMBDA {
      constexpr int s = R - 1 - i.value;
      unroll<0, C>([&](auto v) AUTOINV_LAMBDA { sum[s][v.value] *= reciprocal[k + s]; });
      unroll<0, s>([&](auto r) AUTOINV_LAMBDA {
        const V factor = broadcast(left[r.value][k + s]);
        unroll<0, C>([&](auto v) AUTOINV_LAMBDA {
          sum[r.value][v.value] = subtract_product<T>(sum[r.value][v.value], factor, sum[s][v.value]);
        });
      });
    });
  }
};

// Calls body(tile, c) for tiles over the columns [begin, end), the widest first.
template <class T, int R, int C = kTileVectors, class Body>
AUTOINV_INLINE void for_tiles(int begin, int end, Body body) {
  int c = begin;
  for (; c + C * Simd<T>::lanes <= end; c += C * Simd<T>::lanes) {
    Tile<T, R, C> tile;
    body(tile, c);
  }
  if constexpr (C > 1) {
    if (c < end) for_tiles<T, R, C / 2>(c, end, body);
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv

// The backward of the inverse: dst = -X^T G X^T, one matrix per lane for the smallest n, one matrix at
// a time with SIMD along its rows for the others.
// Source: Giles, "Collected matrix derivative results for forward and reverse mode AD", 2.2.3.
#pragma once

#include <cstddef>

#include "kernel.hpp"
#include "simd.hpp"
#include "transpose.hpp"

namespace autoinv {
namespace AUTOINV_SET {

template <class T>
struct Gradient {
  static constexpr int L = Simd<T>::lanes;
  static constexpr int kMaxLd = (kMaxN + L - 1) / L * L;
  using V = Vector<T>;

  alignas(64) T g[kMaxN * kMaxLd];
  alignas(64) T transposed[kMaxN * kMaxLd];  // X^T
  alignas(64) T product[kMaxN * kMaxLd];     // X^T G

  // to = left right, all with `ld` elements a row, right padded with zeros.
  AUTOINV_INLINE void multiply(const T* left, const T* right, T* to, int n, int ld) {
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < ld; c += L) {
        V sum = {};
        for (int k = 0; k < n; ++k) sum = add_product<T>(sum, *(const V*)(right + k * ld + c), broadcast(left[r * ld + k]));
        *(V*)(to + r * ld + c) = sum;
      }
    }
  }

  AUTOINV_INLINE void run(const T* x, const T* gradient, T* dst, int n, int ld) {
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < n; ++c) {
        g[r * ld + c] = gradient[r * n + c];
        transposed[c * ld + r] = x[r * n + c];
      }
    }
    multiply(transposed, g, product, n, ld);
    multiply(product, transposed, g, n, ld);
    for (int r = 0; r < n; ++r) {
      for (int c = 0; c < n; ++c) dst[r * n + c] = -g[r * ld + c];
    }
  }
};

template <class T>
void gradient_by_rows(const T* x, const T* g, T* dst, int n, int64_t batch) {
  Gradient<T> state;
  const int ld = (n + state.L - 1) / state.L * state.L;
  for (int i = 0; i < n * ld; i += state.L) {
    *(Vector<T>*)(state.g + i) = Vector<T>{};
    *(Vector<T>*)(state.transposed + i) = Vector<T>{};
  }
  const int size = n * n;
  for (; batch > 0; --batch, x += size, g += size, dst += size) state.run(x, g, dst, n, ld);
}

// Row by row, so that only one row of X^T G is alive at a time.
template <class T, int N>
AUTOINV_INLINE void gradient_block(const T* x, const T* g, T* dst) {
  Vector<T> xs[N * N], gs[N * N], result[N * N];
  load_lanes<T, N, N>(x, xs);
  load_lanes<T, N, N>(g, gs);
  unroll<0, N>([&](auto r) AUTOINV_LAMBDA {
    Vector<T> row[N] = {};
    unroll<0, N>([&](auto k) AUTOINV_LAMBDA {
      const Vector<T> factor = xs[k.value * N + r.value];
      unroll<0, N>([&](auto c) AUTOINV_LAMBDA {
        row[c.value] = subtract_product<T>(row[c.value], factor, gs[k.value * N + c.value]);
      });
    });
    unroll<0, N>([&](auto c) AUTOINV_LAMBDA {
      Vector<T> sum = {};
      unroll<0, N>([&](auto k) AUTOINV_LAMBDA {
        sum = add_product<T>(sum, row[k.value], xs[c.value * N + k.value]);
      });
      result[r.value * N + c.value] = sum;
    });
  });
  store_lanes<T, N, N>(result, dst);
}

template <class T, int N>
void gradient_by_lanes(const T* x, const T* g, T* dst, int64_t batch) {
  constexpr int L = Simd<T>::lanes, kBlock = L * N * N;
  for (; batch >= L; batch -= L, x += kBlock, g += kBlock, dst += kBlock) gradient_block<T, N>(x, g, dst);
  if (batch == 0) return;
  alignas(64) T rest[3][kBlock] = {};
  const size_t bytes = size_t(batch) * N * N * sizeof(T);
  __builtin_memcpy(rest[0], x, bytes);
  __builtin_memcpy(rest[1], g, bytes);
  gradient_block<T, N>(rest[0], rest[1], rest[2]);
  __builtin_memcpy(dst, rest[2], bytes);
}

template <class T>
void inv_gradient(const void* x_at, const void* g_at, void* dst_at, int n, int64_t batch) {
  const T *x = static_cast<const T*>(x_at), *g = static_cast<const T*>(g_at);
  T* dst = static_cast<T*>(dst_at);
  switch (n) {
    case 1: return gradient_by_lanes<T, 1>(x, g, dst, batch);
    case 2: return gradient_by_lanes<T, 2>(x, g, dst, batch);
    case 3: return gradient_by_lanes<T, 3>(x, g, dst, batch);
    case 4: return gradient_by_lanes<T, 4>(x, g, dst, batch);
    case 5: return gradient_by_lanes<T, 5>(x, g, dst, batch);
    case 6: return gradient_by_lanes<T, 6>(x, g, dst, batch);
    default: return gradient_by_rows<T>(x, g, dst, n, batch);
  }
}

}  // namespace AUTOINV_SET
}  // namespace autoinv
